"""Processes of a run: started with few threads, logged to a file, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "LEFT_IN_ORDER",
    "NODE_LOST",
    "STOPPED",
    "Child",
    "OwnGroup",
    "Process",
    "last_words",
    "start",
    "stop",
    "stop_process",
    "threads_of",
]

STOP_GRACE_S = 8.0
"""How long a child may take to leave after SIGTERM."""
TAIL_BYTES = 4096
NODE_LOST = -65
"""The exit code of a process whose machine is gone: no signal has this number."""
STOPPED_BY = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM)}
"""Exit codes of a verb that was told to stop, and has stopped in good order (:class:`gruppetto.errors.Stopped`)."""
STOPPED = 128 + signal.SIGTERM
LEFT_IN_ORDER = frozenset({0, *STOPPED_BY})
"""Exit codes of a process that has ended because it was to end."""


class Process(Protocol):
    """What is known and can be asked of a process, wherever it runs; the rest is as of :class:`subprocess.Popen`."""

    pid: int
    """0 while it has no machine."""
    returncode: Any
    waits: str
    """What it needs before it can start; "" once it has it."""
    evicted: bool
    """It was told to leave because its machine goes: another one may take its place."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None:
        """It, and whatever it has started."""

    def wait(self, timeout: float | None = None) -> int: ...

    def release(self) -> None:
        """Give back what was held for it. It has ended."""


class OwnGroup(subprocess.Popen[bytes]):
    """A process of this machine, in a process group of its own."""

    waits = ""
    evicted = False

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> None:
        if self.stdin is not None:
            with contextlib.suppress(OSError):
                self.stdin.close()


@dataclass(slots=True, kw_only=True, eq=False)
class Child:
    """A process and the file that holds what it says."""

    name: str
    process: Process
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def state(self) -> str:
        """``running``, ``waiting for …``, ``done``, ``stopped``, ``failed (exit 1)`` or ``killed (SIGKILL)``."""
        code = self.process.poll()
        if code is None:
            return f"waiting for {self.process.waits}" if self.process.waits else "running"
        if code == 0:
            return "done"
        if code in STOPPED_BY:
            return "stopped"
        if code == NODE_LOST:
            return "gone with its node"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed ({signal.Signals(-code).name})"
        return f"failed (exit {code})"


def start(name: str, arguments: Sequence[str], log: Path, *, threads: int) -> Child:
    """Run ``python ARGUMENTS`` in a process group of its own, so that Ctrl-C reaches it through us only.

    Its standard input is a pipe that closes when we end, however we end: ``--follow-parent`` makes it end with us.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = OwnGroup(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env={**os.environ, **threads_of(threads)},
            start_new_session=True,
        )
    return Child(name=name, process=process, log=log)


def stop(children: Iterable[Child], grace_s: float = STOP_GRACE_S) -> None:
    """Ask all to leave; kill the groups of those that have not after ``grace_s`` seconds. Nothing is held after it."""
    processes = [child.process for child in children]
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        if not stop_process(process, grace_s=grace_s):
            grace_s = min(grace_s, 0.1)  # the others had the same time


def stop_process(process: Process, *, grace_s: float) -> bool:
    """Kill a process that does not leave by itself in ``grace_s`` seconds, give back what it held; whether it left."""
    left = True
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        left = False
        process.kill()
        process.wait()
    process.release()
    return left


def last_words(child: Child, lines: int = 1) -> str:
    """The end of what it said, on one line."""
    try:
        with child.log.open("rb") as file:
            file.seek(max(0, child.log.stat().st_size - TAIL_BYTES))
            said = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        said = []
    return " | ".join(line.strip() for line in said[-lines:]) or "it said nothing"


def threads_of(threads: int) -> Mapping[str, str]:
    """Libraries start as many threads as the machine has cores, which is too many for several processes."""
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMBA_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
