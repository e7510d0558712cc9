"""What all processes on other machines have in common: how they are waited for, and as what their end counts."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable

from gruppetto.launch.children import LEFT_IN_ORDER, STOPPED
from gruppetto.runtime.clock import Clock

__all__ = ["KILLED", "as_told", "waited_for"]

KILLED = -9
"""The exit code of a process that we have killed."""


def waited_for(
    name: str, poll: Callable[[], int | None], *, clock: Clock, timeout_s: float | None, every_s: float
) -> int:
    """The exit code, once ``poll`` knows it. Raises :class:`subprocess.TimeoutExpired` as a local one does."""
    pause, since = threading.Event(), clock.now()
    while (code := poll()) is None:
        if timeout_s is not None and clock.now() - since >= timeout_s:
            raise subprocess.TimeoutExpired(name, timeout_s)
        pause.wait(every_s)
    return code


def as_told(code: int, *, told: bool) -> int:
    """What was told to leave has left, however its ranks or its wrapper put it.

    >>> as_told(1, told=True) == STOPPED, as_told(1, told=False), as_told(KILLED, told=True)
    (True, 1, -9)
    """
    return STOPPED if told and code not in LEFT_IN_ORDER and code != KILLED else code
