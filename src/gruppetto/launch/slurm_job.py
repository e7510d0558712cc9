"""A process of a run as a job of Slurm: the script that is submitted, and what is known of the job."""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppetto.errors import GruppettoError, UserError
from gruppetto.launch.children import LEFT_IN_ORDER, NODE_LOST, STOPPED, threads_of
from gruppetto.launch.engine import HERE
from gruppetto.launch.remote import KILLED, as_told, waited_for
from gruppetto.runtime.clock import Clock

__all__ = ["Job", "SlurmProcess", "asked", "script_of"]

_log = logging.getLogger("gruppetto.launch")

COMMAND_S = 30.0
POLL_S = 0.2
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run, and what it needs."""

    name: str
    arguments: Sequence[str]
    threads: int
    log: Path
    place: Path
    """Where its script lies, and what it says of itself. All nodes see it."""
    python: str
    bundles: Sequence[Mapping[str, float]]
    """What each node has to have: CPU, GPU, memory in bytes; options of sbatch (``partition=gpu``); kinds of gres."""
    ranks_per_node: int = 1

    @property
    def pid_file(self) -> Path:
        return self.place / "pid"

    @property
    def exit_file(self) -> Path:
        return self.place / "exit"


def script_of(job: Job) -> str:
    """The batch script. Its process gets Slurm's signals, preemption's SIGTERM among them, and says how it ended."""
    need = dict(job.bundles[0])
    options = {
        "job-name": f"gruppetto-{job.name}",
        "output": str(job.log),
        "open-mode": "append",
        "nodes": str(len(job.bundles)),
        "ntasks-per-node": "1",
        "cpus-per-task": str(max(1, -int(-need.pop("CPU", 1.0) // 1))),
    }
    if gpus := need.pop("GPU", 0.0):
        options["gpus-per-node"] = f"{gpus:g}"
    if memory := need.pop("memory", 0.0):
        options["mem"] = f"{-int(-memory // MIB)}M"
    flags = [f"--{name}={value}" for name, value in options.items()]
    flags += [f"--{label}" if "=" in label else f"--gres={label}:{amount:g}" for label, amount in need.items()]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {flag}" for flag in flags),
        # It is started again by the launcher, which knows whether the run still needs it.
        "#SBATCH --no-requeue",
        *(f"export {name}={shlex.quote(value)}" for name, value in threads_of(job.threads).items()),
        'FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "PORT=$((20000 + SLURM_JOB_ID % 20000))",
        "export FIRST PORT",
        f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(_inner(job))} </dev/null",
        "code=$?",
        f'echo "$code" >{shlex.quote(str(job.exit_file))}.new',
        f"mv {shlex.quote(str(job.exit_file))}.new {shlex.quote(str(job.exit_file))}",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _inner(job: Job) -> str:
    here = "HERE=$(hostname -I | cut -d ' ' -f 1)"
    pid = f'[ "$SLURM_PROCID" != 0 ] || echo $$ >{shlex.quote(str(job.pid_file))}'
    given = " ".join(shlex.quote(word).replace(HERE, "'\"$HERE\"'") for word in job.arguments)
    return f"{here}; {pid}; exec {shlex.quote(job.python)} {_torchrun(job)}{given}"


def _torchrun(job: Job) -> str:
    if len(job.bundles) == 1 and job.ranks_per_node == 1:
        return ""
    where = f'--nnodes {len(job.bundles)} --node-rank "$SLURM_NODEID" --nproc-per-node {job.ranks_per_node}'
    return f'-m torch.distributed.run {where} --master-addr "$FIRST" --master-port "$PORT" '


def asked(*command: str) -> str:
    """What one of Slurm's commands prints. Raises :class:`GruppettoError` with what it says is wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        raise GruppettoError(f"{command[0]} has not answered in {COMMAND_S:g} s") from None
    except OSError as error:
        raise UserError(
            f"{command[0]} cannot be run ({error.strerror})", where="--on slurm", fix="launch from a node with Slurm"
        ) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise GruppettoError(f"{command[0]}: {said:.300}")
    return done.stdout


class SlurmProcess:
    """See :class:`gruppetto.launch.children.Process`. The engine tells it how its job stands (:meth:`heard`)."""

    def __init__(self, job: Job, clock: Clock) -> None:
        self.job, self._clock = job, clock
        self.pid = 0
        self.returncode: Any = None
        self.waits = "Slurm"
        self.evicted = False
        self.number = ""
        """Slurm's number of the job."""
        self._told = False
        job.place.mkdir(parents=True, exist_ok=True)
        for old in (job.pid_file, job.exit_file):
            old.unlink(missing_ok=True)
        script = job.place / "job.sh"
        script.write_text(script_of(job), encoding="utf-8")
        try:
            self.number = asked("sbatch", "--parsable", str(script)).strip().partition(";")[0]
        except UserError:
            raise
        except GruppettoError as error:
            with job.log.open("a", encoding="utf-8") as log:
                log.write(f"gruppetto: {error}\n")
            _log.warning("%s", error)
            # What Slurm refuses it refuses again; when it does not answer, it may later.
            away = "controller" in str(error) or "not answered" in str(error)
            self.returncode = NODE_LOST if away else UserError.exit_code

    def heard(self, state: str, why: str) -> None:
        """How Slurm says the job stands: its own words, or "" for a job that it does not know any more."""
        if self.returncode is not None:
            return
        if state in ("PENDING", "CONFIGURING"):
            self.waits = f"Slurm ({why.strip('()') or state.lower()})"
            return
        self.waits = ""
        with contextlib.suppress(OSError, ValueError):
            self.pid = self.pid or int(self.job.pid_file.read_text(encoding="utf-8"))
        if state not in ("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"):
            return
        try:
            code = int(self.job.exit_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            code = NODE_LOST  # with it, or by somebody who does not ask
        self._end(-(code - 128) if code > 128 and code not in LEFT_IN_ORDER else code)

    def poll(self) -> int | None:
        code: int | None = self.returncode
        return code

    def terminate(self) -> None:
        """Ask it to leave in good order; one that waits for a node is taken from the queue."""
        self._told = True
        if self.waits:
            self._cancel()
            self._end(STOPPED)
        else:
            self._cancel(signal.SIGTERM)

    def kill(self) -> None:
        self._cancel()
        self._end(KILLED)

    def wait(self, timeout: float | None = None) -> int:
        return waited_for(self.job.name, self._ask, clock=self._clock, timeout_s=timeout, every_s=POLL_S)

    def release(self) -> None:
        """Slurm takes back what a job had by itself."""

    def _ask(self) -> int | None:
        """The same as :meth:`poll`, by a question of its own."""
        if self.poll() is None:
            with contextlib.suppress(GruppettoError):
                line = asked("squeue", "--noheader", "--states=all", "--format=%T|%r", f"--jobs={self.number}").strip()
                self.heard(*(line.split("|", 1) if "|" in line else ("", "")))
        return self.poll()

    def _cancel(self, number: signal.Signals | None = None) -> None:
        with contextlib.suppress(GruppettoError):
            asked("scancel", *([f"--signal={number.name.removeprefix('SIG')}"] if number else []), self.number)

    def _end(self, code: int) -> None:
        if self.returncode is None:
            self.waits = ""
            # SIGTERM from somebody else is Slurm's, which wants the node back.
            self.evicted = code == STOPPED and not self._told
            self.returncode = as_told(code, told=self._told)
