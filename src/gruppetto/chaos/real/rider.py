"""A learner or a syncer that can be made worse from outside, around the shipping command line.

    python -m gruppetto.chaos.real.rider CHAOSDIR NAME VERB ...

runs ``gruppetto VERB ...`` in this process, as it ships. It differs in what it tells the conductor (when it began, each
step it makes), and in what it does to itself while its lever says so: contributions that are NaN or far too large, a
wall clock that has jumped. Nothing of it is in the production code; a new process begins in good health.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gruppetto.chaos.real.kinds import SYNCER
from gruppetto.chaos.real.levers import Lever, Places

__all__ = ["main"]

LOOK_EVERY_S = 0.05
true_time_s: Callable[[], float] = time.time  # noqa: TID251 - the clock that is made to lie


class _Diary:
    """Lines that are with the operating system as soon as they are written: kill -9 takes none back."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def line(self, **said: object) -> None:
        os.write(self._file, json.dumps(said).encode() + b"\n")


class _Levers:
    """The lever of this process, as it stands now."""

    def __init__(self, path: Path, began_at: float) -> None:
        self._path, self._began_at = path, began_at
        self._changed_ns = 0
        self._now = Lever()
        self.look()

    def look(self) -> None:
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError:
            return
        if changed_ns != self._changed_ns:
            self._changed_ns, self._now = changed_ns, Lever.read(self._path)

    def watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY_S):
            self.look()

    @property
    def now(self) -> Lever:
        return self._now

    @property
    def clock_by_s(self) -> float:
        lever = self._now
        return lever.clock_by_s if lever.clock_at >= self._began_at else 0.0


def main(arguments: list[str]) -> None:
    root, name, *verb = arguments
    places, pid = Places(root=Path(root)), os.getpid()
    began_at = _exec_time_s()
    levers = _Levers(places.lever(name), began_at)
    _bend_clock(levers)
    if name != SYNCER:
        diary = _Diary(places.steps(name))
        _tell_steps(diary, pid)
        _tell_beats(diary, pid)
        _bend_offers(levers)
    threading.Thread(target=levers.watch, name="chaos-lever", daemon=True).start()
    _Diary(places.lives).line(who=name, pid=pid, at=began_at)
    sys.argv = ["gruppetto", *verb]
    runpy.run_module("gruppetto", run_name="__main__", alter_sys=True)


def _exec_time_s() -> float:
    """When the operating system started this process, to a hundredth of a second."""
    now = true_time_s()
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
        ticks = int(stat.rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return now
    return now - max(0.0, uptime_s - ticks / os.sysconf("SC_CLK_TCK"))


def _bend_clock(levers: _Levers) -> None:
    setattr(time, "time", lambda: true_time_s() + levers.clock_by_s)  # noqa: B010 - the name itself is banned


def _tell_steps(diary: _Diary, pid: int) -> None:
    """A line at the first Hello and after each step, from inside of the learner's core."""
    from gruppetto.protocol.events import StepDone
    from gruppetto.protocol.learner import LearnerCore

    step, hello = LearnerCore.step, LearnerCore.hello
    said_hello = False

    def telling_step(self: LearnerCore, now: float, event: Any) -> Any:
        if isinstance(event, StepDone):
            diary.line(at=round(true_time_s(), 4), life=pid, clock=self.clock, seen=self.newest_round)
        return step(self, now, event)

    def telling_hello(self: LearnerCore) -> Any:
        nonlocal said_hello
        if not said_hello:
            said_hello = True
            diary.line(at=round(true_time_s(), 4), life=pid, hello=True)
        return hello(self)

    LearnerCore.step = telling_step  # type: ignore[method-assign]
    LearnerCore.hello = telling_hello  # type: ignore[method-assign]


def _tell_beats(diary: _Diary, pid: int) -> None:
    """A line at each heartbeat: when it was sent, and whether it was answered in time."""
    from gruppetto.runtime.heartbeat import Heartbeats

    beat: Callable[[Any, Any], bool] = Heartbeats.beat

    def telling_beat(self: Any, heartbeat: Any) -> bool:
        at = round(true_time_s(), 4)
        answered = beat(self, heartbeat)
        diary.line(at=at, life=pid, beat=answered)
        return answered

    Heartbeats.beat = telling_beat  # type: ignore[method-assign]


def _bend_offers(levers: _Levers) -> None:
    transfers: Any = importlib.import_module("gruppetto.runtime.transfers")

    def bend(encode: Any) -> Any:
        def bent(base: Any, theta: Any, *more: Any) -> Any:
            lever = levers.now
            if lever.nan:
                theta = np.full_like(theta, np.nan)
            elif lever.factor != 1.0:
                theta = base - np.float32(lever.factor) * (base - theta)
            return encode(base, theta, *more)

        return bent

    transfers.encode_difference = bend(transfers.encode_difference)
    transfers.encode_with_rest = bend(transfers.encode_with_rest)


if __name__ == "__main__":
    main(sys.argv[1:])
