"""A syncer and learners of the command line, each a process, started and killed as a user would."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.waiting import PATIENCE_S, until
from tests.ports import HeldPort

from gruppetto.errors import GruppettoError
from gruppetto.launch.ask import fetch_status, find_endpoint

SMALL = """
[run]
rounds = {rounds}
num_fragments = {fragments}
sync_period = {fragments}
start_learners = {start}
liveness_s = 3.0
[train]
batch_size = 4
[model]
dim = 32
layers = 2
ffn_dim = 64
heads = 2
"""


class Rig:
    """Learners a, b and c, whose steps last long beside a round trip; RUN.toml and the state lie in ``place``."""

    def __init__(self, place: Path, *, rounds: int = 100_000, fragments: int = 6, start: int = 1) -> None:
        self.place, self.state, self.file = place, place / "state", place / "RUN.toml"
        self._port = HeldPort()
        self.listen, self.url = self._port.address, ""
        place.mkdir(parents=True, exist_ok=True)
        learners = "".join(f'[[learner]]\nname = "{name}"\nslowdown = 20.0\n' for name in "abc")
        self.file.write_text(SMALL.format(rounds=rounds, fragments=fragments, start=start) + learners)
        self._processes: list[subprocess.Popen[str]] = []

    def syncer(self, state: Path | None = None, trace: Path | None = None) -> subprocess.Popen[str]:
        """Start one, where the one before listened, and wait until it listens."""
        self.state = state or self.state
        recorded = ("--trace", str(trace)) if trace is not None else ()
        process = self._start("syncer", str(self.file), "--listen", self.listen, "--state", str(self.state), *recorded)
        self.until(lambda: (found := find_endpoint(self.state)) is not None and found.pid == process.pid)
        endpoint = find_endpoint(self.state)
        assert endpoint is not None
        self.url = endpoint.url
        return process

    def learner(self, name: str) -> subprocess.Popen[str]:
        return self._start("learner", str(self.file), "--syncer", self.url, "--name", name)

    def status(self) -> dict[str, Any]:
        try:
            return fetch_status(self.url)
        except GruppettoError:
            return {"round": -1, "learners": {}}

    def of(self, name: str) -> dict[str, Any]:
        """What the syncer says of a learner."""
        found: dict[str, Any] = self.status()["learners"].get(name, {"state": None, "incarnation": 0})
        return found

    def until_merged(self, name: str, rounds: int = 3) -> dict[str, Any]:
        """Wait until so many more rounds hold its work; what the syncer says of it then."""
        found: dict[str, Any] = {}
        merged: list[int] = []

        def enough() -> bool:
            found.update(self.status()["learners"].get(name, {}))
            if found:
                merged.append(found.get("merged_rounds", 0))
            return bool(merged) and merged[-1] >= merged[0] + rounds

        self.until(enough)
        return found

    def until(self, fine: Callable[[], bool]) -> None:
        until(fine, self.status)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gruppetto", *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        return process

    def ended(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for its end; exit code and last line."""
        _, said = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said.strip().splitlines()[-1]

    def kill(self, process: subprocess.Popen[str]) -> None:
        """kill −9."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._port.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes rigs whose processes end with the test."""
    made: list[Rig] = []

    def make(**how: int) -> Rig:
        made.append(Rig(tmp_path / str(len(made)), **how))
        return made[-1]

    yield make
    for one in made:
        one.close()
