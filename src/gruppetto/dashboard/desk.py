"""Where lookers are served from: the book is read and looked at on one thread, so that nobody needs a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gruppetto.dashboard.book import Book
from gruppetto.runtime.clock import Clock

__all__ = ["Desk"]

T = TypeVar("T")


class Desk:
    """``before`` is called in the event loop before the book is read: who writes the trace hands it out there.

    ``gentle``: rest after each slice for as long as it took, because a syncer lives in the same process.
    """

    def __init__(
        self, book: Book, clock: Clock, *, before: Callable[[], None] = lambda: None, gentle: bool = False
    ) -> None:
        self.book = book
        self._clock, self._before, self._gentle = clock, before, gentle
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gruppetto-dashboard")
        self._reading = asyncio.Lock()
        self._closed = False

    async def ask(self, look: Callable[[], T]) -> T:
        """What ``look`` finds in the book."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, look)

    async def catch_up(self) -> None:
        """Read what is new. While somebody else does, nothing: what is there is good enough to look at."""
        if self._reading.locked() or self._closed:
            return
        async with self._reading:
            self._before()
            while not self._closed:
                began = self._clock.now()
                if not await self.ask(self.book.read):
                    return
                await asyncio.sleep(self._clock.now() - began if self._gentle else 0.0)

    def close(self) -> None:
        self._closed = True
        self._thread.submit(self.book.close)
        self._thread.shutdown(wait=False)
