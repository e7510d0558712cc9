"""Processes of a local run end with the one that started them, however that ended."""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["end_with_parent", "leave_on_sigterm"]


def end_with_parent() -> None:
    """Treat the end of standard input, a pipe from the parent, as SIGTERM."""

    def wait() -> None:
        # Not through sys.stdin: Python aborts at its end when a thread sits in a buffered read.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def leave_on_sigterm() -> None:
    """SIGTERM ends the main thread like Ctrl-C does: context managers are left in good order."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
