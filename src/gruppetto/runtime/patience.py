"""How long a transfer may stand still: a deadline that everything that moves puts off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Patience", "patience"]

GRAIN = 1 / 16
"""Of the time: moving a timer costs as much as looking at 64 KiB, so it is moved this rarely."""


class Patience:
    """Made by :func:`patience`."""

    def __init__(self, deadline: asyncio.Timeout, stall_s: float) -> None:
        self._deadline, self._stall_s = deadline, stall_s
        self._clock = asyncio.get_running_loop().time
        self._next = self._clock() + GRAIN * stall_s

    def moved(self) -> None:
        """Something has: wait for as long again, or a sixteenth less. Once the time is over it does nothing."""
        now = self._clock()
        if now >= self._next and not self._deadline.expired():
            self._next = now + GRAIN * self._stall_s
            self._deadline.reschedule(now + self._stall_s)

    def end(self) -> None:
        """Wait no more: the time is over now."""
        self._next = float("inf")
        if not self._deadline.expired():
            self._deadline.reschedule(self._clock())


@asynccontextmanager
async def patience(stall_s: float) -> AsyncIterator[Patience]:
    """Raises :class:`TimeoutError` out of its body when nothing has moved for ``stall_s``."""
    async with asyncio.timeout(stall_s) as deadline:
        yield Patience(deadline, stall_s)
