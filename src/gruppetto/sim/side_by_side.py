"""Rows simulated by several processes, which end with the one that asked.

Each watches a pipe whose other end the asking process holds. However that one leaves, by an error, a signal or kill -9,
the pipe is closed, and nobody goes on with a row that nobody waits for.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

from gruppetto.errors import RunFailed

__all__ = ["side_by_side"]

T = TypeVar("T")

LOOK_EVERY_S = 1.0
"""How often other processes are looked at for what they have to tell."""


def side_by_side(
    work: Callable[..., T],
    jobs: Sequence[tuple[Any, ...]],
    *,
    processes: int,
    done: Callable[[int, T], None],
    passed: Callable[[int, float], None],
) -> list[T]:
    """``work(*job, passed=...)`` of every job, the outcomes in the order of the jobs.

    ``done`` and ``passed`` are called here, in one thread, with the job's place. An error of a job is raised, and what
    is raised ends all processes at once. Raises :class:`RunFailed` where a process is killed.
    """
    context = get_context("spawn")
    news: SimpleQueue[tuple[int, float]] = context.SimpleQueue()
    watched, held = context.Pipe(duplex=False)
    with (
        watched,
        held,
        ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(news, watched)) as pool,
    ):
        try:
            places = {pool.submit(_tell, work, place, job): place for place, job in enumerate(jobs)}
            unfinished = set(places)
            while unfinished:
                ended, unfinished = wait(unfinished, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                while not news.empty():
                    passed(*news.get())
                for future in sorted(ended, key=places.__getitem__):
                    done(places[future], future.result())
            return [future.result() for future in places]
        except BrokenProcessPool as gone:
            held.close()
            what = "a process that simulates was killed; where memory is short, simulate with fewer processes"
            raise RunFailed(what) from gone
        except BaseException:
            # The pool would wait for every job that has been handed in, which may be hours.
            held.close()
            raise


_news: SimpleQueue[tuple[int, float]] | None = None
"""In a process that simulates for another one: the way back."""


def _begin(news: SimpleQueue[tuple[int, float]], watched: Connection) -> None:
    global _news
    _news = news
    # Ctrl-C goes to everybody in the terminal; who asked says what came of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(watched,), name="parent-watch", daemon=True).start()


def _end_with(watched: Connection) -> None:
    watched.poll(None)
    os._exit(1)


def _tell(work: Callable[..., T], place: int, job: tuple[Any, ...]) -> T:
    assert _news is not None
    tell = _news.put
    return work(*job, passed=lambda now_s: tell((place, now_s)))
