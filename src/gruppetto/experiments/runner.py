"""Making rides, some at a time, and keeping each result as soon as it is there.

With one worker rides are made in this process; with more, in children that read a ride a line and answer with a line.
Whatever ends this process, what is kept is kept, and the next start makes the rest.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gruppetto.errors import RunFailed
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result, Store
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["Done", "Make", "by_children", "make_rides"]

Make = Callable[[Ride, Path], Result]
ENDS_WITHIN_S = 5.0


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of one ride; ``failed``: why there is no result."""

    result: Result | None = None
    failed: str = ""
    took_s: float = 0.0


def make_rides(
    rides: Sequence[Ride],
    store: Store,
    *,
    cache: Path,
    workers: int = 1,
    say: Callable[[str], None] = lambda text: None,
    make: Make | None = None,
) -> None:
    """Make those that the store does not have yet, in this order, and keep what comes of each.

    ``say`` hears after each how far it is, and how long the rest will take. ``make`` is for tests, with one worker.
    Raises :class:`RunFailed` if a ride fails; those that were over by then are kept.
    """
    todo = [ride for ride in rides if ride not in store]
    if not todo:
        return
    store.try_out()
    clock = MonotonicClock()
    began, told = clock.now(), f"{len(rides) - len(todo)} of {len(rides)} are there already"
    say(f"{len(todo)} runs to make, {workers} at a time" + (f"; {told}" if len(todo) < len(rides) else ""))
    made = _here(todo, cache, make) if workers == 1 else by_children(todo, cache, min(workers, len(todo)))
    for count, (ride, done) in enumerate(made, start=1):
        if done.result is None:
            raise RunFailed(f"{ride.told}: {done.failed}")
        store.add(ride, done.result, took_s=done.took_s)
        left_s = (clock.now() - began) / count * (len(todo) - count)
        loss = done.result.get("loss")
        found = "" if loss is None else f", loss {loss:.3f}"
        say(f"{count}/{len(todo)}, {_span(left_s)} left: {ride.told}{found}")


def _here(todo: Sequence[Ride], cache: Path, make: Make | None) -> Iterator[tuple[Ride, Done]]:
    if make is None:
        from gruppetto.experiments.riding import ride

        make = ride
    clock = MonotonicClock()
    for asked in todo:
        began = clock.now()
        result = make(asked, cache)
        yield asked, Done(result=result, took_s=clock.now() - began)


def by_children(todo: Sequence[Ride], cache: Path, workers: int) -> Iterator[tuple[Ride, Done]]:
    """Made by so many children; each as soon as it is over, in any order. One whose child dies has failed."""
    waiting: queue.SimpleQueue[Ride | None] = queue.SimpleQueue()
    over: queue.SimpleQueue[tuple[Ride, Done]] = queue.SimpleQueue()
    for ride in [*todo, *[None] * workers]:
        waiting.put(ride)
    with _children(cache, workers) as children:
        for child in children:
            threading.Thread(target=_serve, args=(child, waiting, over), daemon=True).start()
        for _ in todo:
            ride, done = over.get()
            while done.result is None and not over.empty():  # what the others have made by now is kept
                other, made = over.get()
                if made.result is not None:
                    yield other, made
            yield ride, done


def _serve(
    child: subprocess.Popen[bytes],
    waiting: queue.SimpleQueue[Ride | None],
    over: queue.SimpleQueue[tuple[Ride, Done]],
) -> None:
    """Hand rides to one child until there are no more."""
    assert child.stdin is not None and child.stdout is not None
    while (ride := waiting.get()) is not None:
        try:
            child.stdin.write(msgspec.json.encode(ride) + b"\n")
            child.stdin.flush()
            done = msgspec.json.decode(child.stdout.readline(), type=Done)
        except (OSError, msgspec.MsgspecError):
            done = Done(failed=f"its process ended with code {child.wait()}")
        over.put((ride, done))


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
