"""What is wrong with requests, in a form that a stranger cannot fill the disk with."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gruppetto.runtime.complaints import Complaints

__all__ = ["complain", "request_log"]


def complain(complaints: Complaints, request: web.Request, kind: str, text: str) -> None:
    """Write into the log what is wrong with a request; of each ``kind`` from one address not too often."""
    peer = request.remote or "?"
    complaints.note((peer, kind), f"{peer} {request.path[:100]}: {text[:500]}")


def request_log(log: logging.Logger, complaints: Complaints) -> logging.Logger:
    """A logger for the HTTP library, which gives what is worth saying to ``log``.

    By itself the library writes a whole traceback for every request that it cannot parse. Here a request of that kind
    is one complaint, and a mistake of ours shows its traceback the first time.
    """
    quiet = logging.Logger("gruppetto.syncer.http")
    quiet.parent = log
    quiet.addFilter(_Quiet(complaints))
    return quiet


class _Quiet(logging.Filter):
    def __init__(self, complaints: Complaints) -> None:
        super().__init__()
        self._complaints = complaints
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        kind = type(error).__name__
        if not isinstance(error, HttpProcessingError) and kind not in self._seen:
            self._seen.add(kind)
            return True
        peer = str(record.args[0]) if isinstance(record.args, tuple) and record.args else "?"
        words = " ".join(str(error).split())[:200]
        self._complaints.note((peer, kind), f"{peer}: the request cannot be served: {kind}: {words}", record.levelno)
        return False
