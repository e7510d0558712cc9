"""How a verb is told to end: by a signal, or by the end of the process that started it.

One rule for all verbs: SIGINT and SIGTERM end them in good order, with exit code 130 and 143. A second signal does not
wait for that.

A child of a local run ends with its parent (:mod:`gruppetto.runtime.orphans` notices). Linux is asked for one thing
more: that SIGCONT wakes a child that was stopped at that moment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gruppetto.runtime.orphans import when_orphaned

__all__ = ["ORPHAN_GRACE_S", "Terminated", "end_with_parent", "sigterm_ends_in_order"]

ORPHAN_GRACE_S = 2.0
"""How long a process may take to leave when its parent has gone. Nobody waits for it, and its syncer ends too: a
learner that would part from it in good order would only wait for answers. What was published is durable."""
SIGTERM_CODE = 128 + signal.SIGTERM
PR_SET_PDEATHSIG = 1


class Terminated(SystemExit):
    """SIGTERM came: context managers are left in good order, as after Ctrl-C."""


def end_with_parent() -> None:
    """Treat the end of standard input, a pipe from the parent, as SIGTERM; and soon as the end."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)

    def leave() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(ORPHAN_GRACE_S)
        os._exit(SIGTERM_CODE)

    when_orphaned(leave)


@contextmanager
def sigterm_ends_in_order() -> Iterator[None]:
    """Until the end of the block SIGTERM raises :class:`Terminated` in the main thread, once. Elsewhere nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
