"""Shared by all tests: how hard hypothesis tries, one thread per process, and an object store."""

from __future__ import annotations

import logging
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time: whether a change passes depends on the change. ``fuzz`` draws others.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "fuzz", deadline=None, derandomize=False, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")

# Started in a script's background, a process ignores Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes give no name to a test: what is packed holds the time, and workers that collect it in two different seconds
    would not agree which tests there are."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The endpoint of a server of Amazon's protocol on loopback, with a bucket ``lab``."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as surroundings:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            surroundings.setenv(name, "testing")
        server.start()
        endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/lab", method="PUT")).close()
        yield endpoint
        server.stop()
