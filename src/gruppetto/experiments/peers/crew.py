"""The processes of one system: its workers, and what it has besides them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gruppetto.experiments.peers.course import Setting
from gruppetto.launch.ports import free_port

__all__ = ["ALONE", "OURS", "SCRIPTS", "Coordinator", "Workers", "coordinator_of"]

ALONE = "alone"
"""No system at all: each worker for itself."""
OURS = "gruppetto"
SCRIPTS = {ALONE: "alone", OURS: "ours", "torchft": "with_torchft", "hivemind": "with_hivemind"}


@dataclass(kw_only=True)
class Coordinator:
    """What a system has besides its workers: a syncer, a lighthouse; without a command nothing at all."""

    command: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Of the workers, so that they find it."""
    log: Path = Path(os.devnull)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.command:
            with self.log.open("a") as said:
                self.process = subprocess.Popen(self.command, stdout=said, stderr=said)

    def answers(self) -> bool:
        """Workers will find it there; where there is none, at once."""
        if not self.command:
            return True
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def coordinator_of(peer: str, place: Path, setting: Setting, python: str) -> Coordinator:
    """Not yet started. It comes back under the same address, and with its state if it has one."""
    log, port = place / "coordinator.log", free_port("127.0.0.1")
    if peer == OURS:
        sets = {
            "run.num_learners": setting.workers,
            "run.rounds": setting.steps,
            "run.num_fragments": setting.sync_every,
            "run.sync_period": setting.sync_every,
            "syncer.shared_memory": "false",  # what goes past the loopback would not be counted
        }
        command = [sys.executable, "-m", "gruppetto", "syncer", "--state", str(place / "syncer")]
        command += ["--listen", f"127.0.0.1:{port}"]
        command += [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        return Coordinator(command=command, log=log, port=port)
    if peer == "torchft":
        command = [str(Path(python).parent / "torchft_lighthouse"), "--min_replicas", "1"]
        command += ["--join_timeout_ms", "1000", "--bind", f"127.0.0.1:{port}"]
        environment = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "GLOO_SOCKET_IFNAME": "lo"}
        return Coordinator(command=command, environment=environment, log=log, port=port)
    return Coordinator()


class Workers:
    """Started, killed and started again; how far each is stands in its file."""

    def __init__(self, place: Path, peer: str, python: str, environment: dict[str, str]) -> None:
        self._place = place
        source = Path(__file__).resolve().parents[3]
        self._environment = {**os.environ, **environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
        self._command = [python, "-m", f"gruppetto.experiments.peers.{SCRIPTS[peer]}", str(place)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, worker: int) -> None:
        with self.log(worker).open("a") as said:
            self._processes[worker] = subprocess.Popen(
                [*self._command, str(worker)],
                stdout=said,
                stderr=said,
                env=self._environment,
                start_new_session=True,  # what it has started itself is signalled with it
            )

    def signal(self, worker: int, number: int) -> None:
        """To it and all that it has started, if it is there still."""
        process = self._processes[worker]
        if process.poll() is None:
            os.killpg(process.pid, number)

    def failed(self) -> list[int]:
        """Those that have ended by themselves, and not at the end of the training: killed −9 they are by us alone."""
        codes = {worker: process.poll() for worker, process in self._processes.items()}
        return [worker for worker, code in codes.items() if code not in (None, 0, -signal.SIGKILL)]

    def came_in(self) -> list[int]:
        """Those that have come to the end of the training."""
        return [worker for worker in self._processes if self.final(worker) is not None]

    def over(self) -> bool:
        return all(process.poll() is not None for process in self._processes.values())

    def end(self) -> None:
        """None of them is there afterwards, nor what they have started."""
        for process in self._processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                process.wait()

    def steps(self, worker: int) -> list[float]:
        """When each step ended."""
        file = self._place / f"{worker}.steps"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [float(line) for line in lines]

    def final(self, worker: int) -> dict[str, Any] | None:
        """When it had come to the end, and how good its model was there."""
        file = self._place / f"{worker}.final"
        return json.loads(file.read_text()) if file.exists() else None

    def log(self, worker: int) -> Path:
        """What it has said, in all its lives."""
        return self._place / f"worker {worker}.log"
