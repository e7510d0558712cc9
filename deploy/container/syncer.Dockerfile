# A syncer, without torch. From a clone: docker build -f deploy/container/syncer.Dockerfile -t gruppetto-syncer .
# Off loopback it wants papers: put what `gruppetto certs make` has made for it (ca.pem, syncer.pem, syncer.key) at /certs.
FROM python:3.12-slim
COPY pyproject.toml README.md LICENSE constraints.txt /build/
COPY src /build/src
RUN pip install --no-cache-dir -c /build/constraints.txt "/build" && rm -rf /build \
    && useradd --uid 10001 --create-home --home-dir /home/gruppetto gruppetto \
    && mkdir /state && chown gruppetto /state
USER gruppetto
# Kernels are compiled once for each machine, and kept where this user may write.
ENV NUMBA_CACHE_DIR=/home/gruppetto/.cache/numba PYTHONUNBUFFERED=1
VOLUME /state
EXPOSE 7171
STOPSIGNAL SIGTERM
ENTRYPOINT ["gruppetto", "syncer"]
CMD ["--listen", "0.0.0.0:7171", "--state", "/state", "--certs", "/certs"]
