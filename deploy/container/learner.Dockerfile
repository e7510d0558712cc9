# A reference learner on CPU. From a clone: docker build -f deploy/container/learner.Dockerfile -t gruppetto-learner .
# For GPUs, begin with an image that has torch for them: --build-arg BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE constraints.txt /build/
COPY src /build/src
RUN (python -c "import torch" 2>/dev/null || pip install --no-cache-dir --index-url "${TORCH_INDEX}" torch) \
    && pip install --no-cache-dir -c /build/constraints.txt "/build[train]" && rm -rf /build \
    && useradd --uid 10001 --create-home --home-dir /home/gruppetto gruppetto
USER gruppetto
WORKDIR /home/gruppetto
ENV PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
ENTRYPOINT ["gruppetto", "learner"]
