"""How the processes of a local run are called, and where a learner finds its syncer: plainly, unless somebody differs.

The chaos verb does: its processes can be made worse, and its learners reach the syncer through a proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["PlainRoutes", "Routes"]


class Routes(Protocol):
    """What the launcher asks whenever it starts a process of a run, also when it starts one again."""

    def command(self, name: str, verb: Sequence[str]) -> list[str]:
        """The arguments for Python that run ``gruppetto VERB`` as the process ``name``."""
        ...

    def syncer_for(self, learner: str, syncer: str) -> str:
        """The syncer as this learner is told it. ``syncer``: where it is without detours, its addresses with commas
        between them, or the state directory in which it says its address."""
        ...


class PlainRoutes:
    """The command line as it ships, and the syncer's own word.

    >>> PlainRoutes().command("anna", ["learner", "run.toml"])
    ['-m', 'gruppetto', 'learner', 'run.toml']
    """

    def command(self, name: str, verb: Sequence[str]) -> list[str]:
        return ["-m", "gruppetto", *verb]

    def syncer_for(self, learner: str, syncer: str) -> str:
        return syncer
