"""Where the slow work of the syncer is done: one job at a time, in the order in which it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

__all__ = ["ThreadWorker", "Worker"]

T = TypeVar("T")


class Worker(Protocol):
    """Does ``job``, then calls ``done`` with its result, or ``failed`` with its exception, in the caller's thread."""

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None: ...

    def close(self) -> None:
        """Finish what was given and take no more. Nobody is told what came of it any more."""
        ...


class ThreadWorker:
    """One thread beside an event loop. Results come back through the loop, in order."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closed = False
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        def report(future: Future[T]) -> None:
            error = future.exception()
            if self._closed:
                return
            if error is None:
                done(future.result())
            elif isinstance(error, Exception):
                failed(error)

        def hand_over(future: Future[T]) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(report, future)

        self._pool.submit(job).add_done_callback(hand_over)

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=True)
