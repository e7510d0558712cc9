"""Making rides, some at a time, and keeping each result as soon as it is there.

With one worker rides are made in this process; with more, in children that read a ride a line and answer with a line.
Whatever ends this process, what is kept is kept, and the next start makes the rest. Several processes share the work
(:mod:`gruppetto.experiments.sharing`).
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from gruppetto.errors import RunFailed
from gruppetto.experiments.budget import Budget
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.sharing import Asked, Shared
from gruppetto.experiments.store import Result
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["Done", "Make", "by_children", "make_rides"]

Make = Callable[[Ride, Path], Result]
Take = Callable[[], Asked | None]
"""Gives the next ride to make, each once; None: no more."""
ENDS_WITHIN_S = 5.0


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of one ride; ``failed``: why there is no result."""

    result: Result | None = None
    failed: str = ""
    took_s: float = 0.0


Came = tuple[Asked, Done] | Exception | None
"""From one who serves a child: a ride that is over, what went wrong in taking one, or that it has ended."""


def make_rides(
    work: Sequence[Asked],
    *,
    cache: Path,
    workers: int = 1,
    budget: Budget | None = None,
    say: Callable[[str], None] = lambda text: None,
    make: Make | None = None,
) -> None:
    """Make those that nobody has made or is making, in this order, and keep what comes of each; then all are there, or
    the ``budget`` is used up.

    ``say`` hears after each how far it is, and how long the rest will take. ``make`` is for tests, with one worker.
    Raises :class:`RunFailed` if a ride fails; those that were over by then are kept.
    """
    shared = Shared(work, budget=budget, say=say)
    todo = shared.left()
    if not todo or shared.is_over():
        return
    for store in shared.stores:
        store.try_out()
    clock = MonotonicClock()
    began, told = clock.now(), f"{len(work) - todo} of {len(work)} are there already"
    several = len(shared.stores) > 1
    say(f"{todo} runs to make, {workers} at a time" + (f"; {told}" if todo < len(work) else ""))
    made = _here(shared.take, cache, make) if workers == 1 else by_children(shared.take, cache, min(workers, todo))
    with shared.open(), closing(made):
        for asked, done in made:
            which = f"{asked.store.path.stem} {asked.ride.told}" if several else asked.ride.told
            if done.result is None:
                raise RunFailed(f"{which}: {done.failed}")
            shared.keep(asked, done.result, took_s=done.took_s)
            left = shared.left()
            left_s = (clock.now() - began) / (todo - left) * left
            if budget is not None:
                left_s = min(left_s, budget.left_s)
            loss = done.result.get("loss")
            found = "" if loss is None else f", loss {loss:.3f}"
            say(f"{todo - left}/{todo}, {_span(left_s)} left: {which}{found}")


def _here(take: Take, cache: Path, make: Make | None) -> Generator[tuple[Asked, Done]]:
    if make is None:
        from gruppetto.experiments.riding import ride

        make = ride
    clock = MonotonicClock()
    while (asked := take()) is not None:
        began = clock.now()
        result = make(asked.ride, cache)
        yield asked, Done(result=result, took_s=clock.now() - began)


def by_children(take: Take, cache: Path, workers: int) -> Generator[tuple[Asked, Done]]:
    """Made by so many children; each as soon as it is over, in any order. One whose child dies has failed."""
    over: queue.SimpleQueue[Came] = queue.SimpleQueue()
    with _children(cache, workers) as children:
        for child in children:
            threading.Thread(target=_serve, args=(child, take, over), daemon=True).start()
        while workers:
            came = [over.get()]
            while not over.empty():
                came.append(over.get())
            workers -= came.count(None)
            # What was made is kept first, whatever else has gone wrong by now.
            yield from sorted((each for each in came if isinstance(each, tuple)), key=lambda each: bool(each[1].failed))
            for wrong in came:
                if isinstance(wrong, Exception):
                    raise wrong


def _serve(child: subprocess.Popen[bytes], take: Take, over: queue.SimpleQueue[Came]) -> None:
    """Hand rides to one child until there are no more, or it has died."""
    assert child.stdin is not None and child.stdout is not None
    try:
        while (asked := take()) is not None:
            try:
                child.stdin.write(msgspec.json.encode(asked.ride) + b"\n")
                child.stdin.flush()
                done = msgspec.json.decode(child.stdout.readline(), type=Done)
            except (OSError, msgspec.MsgspecError):
                over.put((asked, Done(failed=f"its process ended with code {child.wait()}")))
                break
            over.put((asked, done))
        over.put(None)
    except Exception as wrong:  # of taking: it is for whoever asked
        over.put(wrong)


@contextmanager
def _children(cache: Path, workers: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    # One thread each: as many as there are cores would be in each other's way.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gruppetto.experiments.worker", str(cache)]
    children: list[subprocess.Popen[bytes]] = []
    try:
        # A Ctrl-C while they begin is for us: until a worker leaves it alone by itself, it is held up.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(workers):
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                children.append(subprocess.Popen(command, env=environment, **pipes))  # type: ignore[call-overload]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield children
    finally:
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
