"""A run on a Slurm cluster: syncer, standby and learners as independent jobs, so that each may wait, go and come alone.

The run directory has to lie on storage that all nodes see, as on most such clusters. Jobs outlive a launcher that is
killed without a word; one that is told to stop takes them along.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gruppetto.config import RunConfig
from gruppetto.errors import GruppettoError
from gruppetto.launch.children import Child
from gruppetto.launch.engine import HERE
from gruppetto.launch.needs import bundles_for
from gruppetto.launch.slurm_job import Job, SlurmProcess, asked
from gruppetto.runtime.clock import Clock

__all__ = ["SlurmEngine"]

LOOK_S = 2.0
"""Between two questions to the controller, of which there is one for all jobs."""


class SlurmEngine:
    """``config`` in ``directory`` as jobs of whoever runs this. Raises :class:`UserError` where there is no Slurm."""

    def __init__(self, config: RunConfig, directory: Path, *, clock: Clock) -> None:
        self._config, self._directory, self._clock = config, directory, clock
        self._processes: list[SlurmProcess] = []
        self._looked_at = -LOOK_S
        nodes = set(asked("sinfo", "--noheader", "--Node", "--format=%N").split())
        self.host = "127.0.0.1" if nodes == {socket.gethostname()} else HERE

    def start(self, name: str, arguments: Sequence[str], log: Path, *, threads: int) -> Child:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        job = Job(
            name=name,
            # A job has no parent here whose end it could see.
            arguments=[argument for argument in arguments if argument != "--follow-parent"],
            threads=threads,
            log=log,
            place=self._directory / "slurm" / name,
            python=sys.executable,
            bundles=bundles_for(self._config, name),
            ranks_per_node=self._config.group_of(name).on_a_node,
        )
        process = SlurmProcess(job, self._clock)
        self._processes = [one for one in self._processes if one.returncode is None]
        self._processes.append(process)
        return Child(name=name, process=process, log=log)

    def look(self, syncer: str) -> None:
        now = self._clock.now()
        waiting = [one for one in self._processes if one.returncode is None]
        if not waiting or now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        numbers = ",".join(one.number for one in waiting)
        with suppress(GruppettoError):  # it is busy: later
            said = asked("squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%r", f"--jobs={numbers}")
            stands = {number: (state, why) for number, state, why in _rows(said)}
            for process in waiting:
                process.heard(*stands.get(process.number, ("", "")))

    def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()


def _rows(said: str) -> list[tuple[str, str, str]]:
    rows = (line.strip().split("|", 2) for line in said.splitlines())
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]
