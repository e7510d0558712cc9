"""Where the processes of a run are put: on this machine, or on an engine that people operate already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gruppetto.launch.children import Child, start

__all__ = ["HERE", "Engine", "ThisMachine"]

HERE = "{host}"
"""In an argument of a process: the address of the machine that it runs on, known once it has one."""


class Engine(Protocol):
    """What the launcher asks of whatever runs its processes.

    Everything returns at once: a process that waits for a machine says so (:attr:`Process.waits`) until it has one.
    """

    host: str
    """Where a syncer is to listen unless the settings say so: an address, :data:`HERE`, or "" for the settings' own."""

    def start(self, name: str, arguments: Sequence[str], log: Path, *, threads: int) -> Child:
        """Run ``python ARGUMENTS`` as the process ``name``; what it says is appended to ``log``, on this machine."""
        ...

    def look(self, syncer: str) -> None:
        """See what has changed. ``syncer``: the address of the one in charge, "" until it is known."""
        ...

    def close(self) -> None:
        """Give everything back. Nothing that was started lives longer."""
        ...


class ThisMachine:
    """Processes as children of the launcher."""

    host = ""

    def start(self, name: str, arguments: Sequence[str], log: Path, *, threads: int) -> Child:
        return start(name, arguments, log, threads=threads)

    def look(self, syncer: str) -> None:
        """Children are seen without asking."""

    def close(self) -> None:
        """The launcher stops its children itself."""
