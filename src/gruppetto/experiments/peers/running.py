"""``python -m gruppetto.experiments.peers.running PLACE PEER MISHAP PYTHON``: one race, its figures as JSON."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from gruppetto.errors import RunFailed
from gruppetto.experiments.child import last_line
from gruppetto.experiments.peers.course import READY_WITHIN_S, Setting
from gruppetto.experiments.peers.crew import Workers, coordinator_of
from gruppetto.experiments.peers.mishaps import BACK_AFTER_S, Mishap, mishaps_of
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.orphans import when_orphaned

__all__ = ["loopback_bytes", "main", "until"]

WITHIN, START_S = 3.0, 60.0
"""A race is over, whoever has come in, after so many times what its steps take, and so many seconds."""
LOOK_EVERY_S = 0.02
AGAIN_AT_MOST = 10
"""A worker that fails is started again so often, all workers together; beyond that it has not come in."""


def main(place: Path, peer: str, mishap: str, python: str) -> None:
    setting = Setting.read(place)
    coordinator = coordinator_of(peer, place, setting, python)
    workers = Workers(place, peer, python, coordinator.environment)
    try:
        coordinator.start()
        until(coordinator.answers, coordinator.log)
        for worker in range(setting.workers):
            workers.start(worker)
            if peer == "hivemind":  # whoever comes later is told of those that are there
                until((place / f"{worker}.peer").exists, workers.log(worker))
        for worker in range(setting.workers):
            until((place / f"{worker}.ready").exists, workers.log(worker))
        sent, began = loopback_bytes(), wall_time_s()
        (place / "go").touch()
        failures = _meanwhile(began, setting, workers, mishaps_of(mishap, setting.steps, workers, coordinator))
        figures = _figures(setting, workers, began, loopback_bytes() - sent)
    finally:
        workers.end()
        coordinator.kill()
    print(json.dumps({**figures, "failures": failures}))


def _meanwhile(began: float, setting: Setting, workers: Workers, mishaps: list[Mishap]) -> int:
    """Until all have come in, or it lasts too long; how often one failed by itself."""
    slower = setting.slow[1] if setting.slow is not None else 1.0
    until = began + START_S + WITHIN * slower * setting.steps * setting.pace_s
    due: list[tuple[float, Callable[[], None]]] = []
    failures = 0
    while (now := wall_time_s()) < until and not (workers.over() and not due):
        while mishaps and len(workers.steps(0)) >= mishaps[0].at_step:
            mishap = mishaps.pop(0)
            mishap.first()
            due.append((now + mishap.later_s, mishap.then))
        for each in [each for each in due if each[0] <= now]:
            due.remove(each)
            each[1]()
        # Once one has come in, whoever comes back comes too late.
        for worker in [] if workers.came_in() else workers.failed():
            if failures < AGAIN_AT_MOST:
                failures += 1
                time.sleep(BACK_AFTER_S)
                workers.start(worker)
        time.sleep(LOOK_EVERY_S)
    return failures


def _figures(setting: Setting, workers: Workers, began: float, sent: int) -> dict[str, Any]:
    """Steps are those of the first worker, to which nothing was done: what the others' mishaps cost it."""
    finals = [final for w in range(setting.workers) if (final := workers.final(w)) is not None]
    made = sum(len(workers.steps(w)) for w in range(setting.workers))
    lasted = sorted(after - before for before, after in pairwise([began, *workers.steps(0)]))
    losses = [final["loss"] for final in finals]
    return {
        "loss": statistics.fmean(losses) if losses and None not in losses else None,
        "came in": len(finals),
        "wall_s": max(final["ended"] for final in finals) - began if finals else None,
        "tokens": made * setting.batch * setting.context,
        "step_p50_ms": 1e3 * statistics.median(lasted) if lasted else None,
        "step_p99_ms": 1e3 * lasted[int(0.99 * len(lasted))] if lasted else None,
        "longest_s": lasted[-1] if lasted else None,
        "bytes": sent / max(1, made),
    }


def until(holds: Callable[[], bool], log: Path) -> None:
    """Wait for it. Raises :class:`RunFailed`, with the last line of the log."""
    deadline = wall_time_s() + READY_WITHIN_S
    while not holds():
        if wall_time_s() > deadline:
            said = log.read_text(errors="replace") if log.exists() else ""
            raise RunFailed(f"{log.stem} is not ready after {READY_WITHIN_S:g} s: {last_line(said)}")
        time.sleep(LOOK_EVERY_S)


def loopback_bytes() -> int:
    """That have come over the loopback of this network namespace so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (lo,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(lo.split()[1])


if __name__ == "__main__":
    # As an exception, so that all processes are ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    when_orphaned(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except RunFailed as failed:
        print(" ".join(str(failed).split()), file=sys.stderr)
        sys.exit(1)
