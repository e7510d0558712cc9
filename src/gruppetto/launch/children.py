"""Processes of a local run: started with few threads, logged to a file, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LEFT_IN_ORDER", "Child", "last_words", "start", "stop"]

STOP_GRACE_S = 8.0
"""How long a child may take to leave after SIGTERM."""
TAIL_BYTES = 4096
STOPPED_BY = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM)}
"""Exit codes of a verb that was told to stop, and has stopped in good order (:class:`gruppetto.errors.Stopped`)."""
LEFT_IN_ORDER = frozenset({0, *STOPPED_BY})
"""Exit codes of a process that has ended because it was to end."""


@dataclass(slots=True, kw_only=True, eq=False)
class Child:
    """A process and the file that holds what it says."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def state(self) -> str:
        """``running``, ``done``, ``stopped``, ``failed (exit 1)`` or ``killed (SIGKILL)``."""
        code = self.process.poll()
        if code is None:
            return "running"
        if code == 0:
            return "done"
        if code in STOPPED_BY:
            return "stopped"
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
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env={**os.environ, **_threads(threads)},
            start_new_session=True,
        )
    return Child(name=name, process=process, log=log)


def stop(children: Iterable[Child], grace_s: float = STOP_GRACE_S) -> None:
    """Ask all to leave; kill the groups of those that have not after ``grace_s`` seconds."""
    waiting = [child for child in children if child.running]
    for child in waiting:
        child.process.terminate()
    patience_s = grace_s
    for child in waiting:
        try:
            child.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            patience_s = 0.1  # the others had the same time
    for child in waiting:
        if child.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        if child.process.stdin is not None:
            with contextlib.suppress(OSError):
                child.process.stdin.close()


def last_words(child: Child, lines: int = 1) -> str:
    """The end of what it said, on one line."""
    try:
        with child.log.open("rb") as file:
            file.seek(max(0, child.log.stat().st_size - TAIL_BYTES))
            said = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        said = []
    return " | ".join(line.strip() for line in said[-lines:]) or "it said nothing"


def _threads(threads: int) -> Mapping[str, str]:
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
