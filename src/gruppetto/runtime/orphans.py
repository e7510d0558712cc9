"""How a child of a local run learns that its parent has gone: standard input ends, a pipe whose other end the parent
holds (:mod:`gruppetto.launch.children`).

However the parent ends, kill -9 included, the system closes the pipe. Unlike a signal on the parent's death (Linux's
PR_SET_PDEATHSIG) that is so on every Unix, whichever thread started the child, and there is no moment at the start at
which it can be missed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

__all__ = ["when_orphaned"]


def when_orphaned(then: Callable[[], object]) -> None:
    """Call ``then`` in a thread of its own as soon as the parent has gone. What comes through the pipe is not read."""

    def watch() -> None:
        # Not through sys.stdin: Python aborts at its end when a thread sits in a buffered read.
        while os.read(0, 4096):
            pass
        then()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
