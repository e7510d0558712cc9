"""Somebody who answers over HTTP, for as long as a test asks him."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Quiet", "served"]

POLL_S = 0.01
"""So soon a server hears that it is to end."""


class Quiet(BaseHTTPRequestHandler):
    """Says nothing of who has asked."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address at which ``handler`` answers until the end of the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
