"""``gruppetto experiment`` is ended in every way: no process stays, and nothing in the temporary directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.live.waiting import PATIENCE_S, until

from gruppetto.experiments.ride import Ride

pytestmark = pytest.mark.live
RIDES = {"virtual": Ride(rounds=100_000), "processes": Ride(system="processes", learners=2, rounds=100_000)}
ENDS: dict[str, Callable[[subprocess.Popen[bytes]], object]] = {
    "its parent ends": lambda worker: worker.stdin.close() if worker.stdin else None,
    "SIGTERM": lambda worker: worker.terminate(),
    "SIGKILL": lambda worker: worker.kill(),
}


def that_mention(place: Path) -> list[str]:
    """Processes with the path on their command line."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if str(place) in line]


@pytest.mark.parametrize("kind", RIDES)
@pytest.mark.parametrize("end", ENDS)
def test_a_worker_leaves_nothing_behind(kind: str, end: str, tmp_path: Path) -> None:
    place, cache = tmp_path / "tmp", tmp_path / "cache"
    place.mkdir()
    worker = subprocess.Popen(
        [sys.executable, "-m", "gruppetto.experiments.worker", str(cache)],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert worker.stdin is not None
        worker.stdin.write(msgspec.json.encode(RIDES[kind]) + b"\n")
        worker.stdin.flush()
        begun = "*/trace.jsonl" if kind == "virtual" else "*/run/learners/learner-1/learner.log"
        until(lambda: any(place.glob(begun)) or worker.poll() is not None)
        assert worker.poll() is None
        ENDS[end](worker)
        assert worker.wait(PATIENCE_S) in (128 + signal.SIGTERM, -signal.SIGKILL)
        until(lambda: not that_mention(tmp_path), lambda: that_mention(tmp_path))
        assert end == "SIGKILL" or not list(place.glob("tmp*"))
    finally:
        worker.kill()
