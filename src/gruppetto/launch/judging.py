"""The process that judges a run, called anew when it dies; see :mod:`gruppetto.launch.judge` for what it does."""

from __future__ import annotations

import logging
from pathlib import Path

from gruppetto.launch.children import Child, start, stop

__all__ = ["MAX_JUDGES", "Judging"]

_log = logging.getLogger("gruppetto.launch")

MAX_JUDGES = 3
"""A judge that dies is replaced; one that dies again and again has a reason to."""


class Judging:
    """The judge of the run in ``directory``."""

    def __init__(self, directory: Path, cache: Path, *, threads: int) -> None:
        self._directory, self._cache, self._threads = directory, cache, threads
        self.child: Child | None = None
        self.calls = 0

    def call(self) -> None:
        command = ["-m", "gruppetto.launch.judge", str(self._directory), str(self._cache)]
        self.child = start("judge", command, self._directory / "judge.log", threads=self._threads)
        self.calls += 1

    def at_work(self) -> bool:
        """Whether a judge is. One that has died is replaced, up to a bound."""
        assert self.child is not None
        if self.child.state not in ("running", "done") and self.calls < MAX_JUDGES:
            _log.warning("the judge is %s: another one is called", self.child.state)
            stop([self.child])
            self.call()
            return True
        return self.child.running
