"""What runs on a node of a Ray cluster: one process of a run, started, listened to and told to leave.

It is an actor's class, but knows nothing of Ray: what it takes and gives are plain values. Its process follows it: when
the actor ends, with its node or by the launcher's will, the process's standard input closes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gruppetto.errors import UserError
from gruppetto.launch.children import OwnGroup, stop_process, threads_of
from gruppetto.launch.engine import HERE
from gruppetto.launch.ports import free_port

__all__ = ["Host"]

MOST_AT_ONCE_BYTES = 1 << 20


class Host:
    """Runs ``python ARGUMENTS`` on its node, once."""

    def __init__(self, address: str, python: str) -> None:
        self._address, self._python = address, python
        self._place = Path(tempfile.mkdtemp(prefix="gruppetto-"))
        self._log = self._place / "log"
        self._log.touch()
        self._process: OwnGroup | None = None
        self._refused: int | None = None

    def free_port(self) -> int:
        """One at which the ranks of a learner may find each other."""
        return free_port(self._address)

    def sees(self, file: str, digest: str) -> bool:
        """Whether ``file`` is here, with this content: then the run directory is on storage that this node shares."""
        with contextlib.suppress(OSError):
            return hashlib.sha256(Path(file).read_bytes()).hexdigest() == digest
        return False

    def start(self, arguments: Sequence[str], threads: int, instead: Mapping[str, str | bytes]) -> int:
        """The process's id. Arguments in ``instead`` are replaced: by another text, or by a file of that content; a
        directory named there by an empty text has to be here."""
        for path, other in instead.items():
            if other == "":
                return self._refuse(
                    f"{path}: is not to be seen on {socket.gethostname()} ({self._address}), where the syncer is to "
                    "run; put the run directory on storage that all nodes share (--out)"
                )
        given = [self._resolved(argument, instead) for argument in arguments]
        with self._log.open("ab") as log:
            self._process = OwnGroup(
                [self._python, *given],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._place,
                env={**os.environ, **threads_of(threads)},
                start_new_session=True,
            )
        return self._process.pid

    def look(self, heard_bytes: int, wait_s: float) -> tuple[int | None, bytes]:
        """The exit code once it has ended and been heard out, and what it said after ``heard_bytes``; at the latest
        after ``wait_s``."""
        code = self._refused
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(wait_s)
        with self._log.open("rb") as log:
            log.seek(heard_bytes)
            said = log.read(MOST_AT_ONCE_BYTES)
        return (None if len(said) == MOST_AT_ONCE_BYTES else code), said

    def leave(self) -> None:
        """Ask it to leave in good order."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """It, and what it has started."""
        if self._process is not None:
            stop_process(self._process, grace_s=0.0)

    def _refuse(self, why: str) -> int:
        self._log.write_text(f"gruppetto: {why}\n", encoding="utf-8")
        self._refused = UserError.exit_code
        return 0

    def _resolved(self, argument: str, instead: Mapping[str, str | bytes]) -> str:
        other = instead.get(argument, argument)
        if isinstance(other, bytes):
            copy = self._place / Path(argument).name
            copy.write_bytes(other)
            return str(copy)
        shown = f"[{self._address}]" if ":" in self._address else self._address
        return other.replace(HERE, shown)
