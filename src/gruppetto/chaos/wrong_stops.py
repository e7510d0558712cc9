"""Cores that stop wrongly, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from gruppetto.protocol.round import Phase
from gruppetto.protocol.stopping import INTERRUPTIBLE
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["GoesWithoutAWord", "SavesAHalfMergedRound"]


class GoesWithoutAWord(SyncerCore):
    """Told to stop, it goes at once: a commit was made some rounds ago."""

    def _stop_if_ready(self) -> None:
        if self._stopping and self.phase in INTERRUPTIBLE:
            self.phase = Phase.STOPPED


class SavesAHalfMergedRound(SyncerCore):
    """What was folded into the round that is given up stays merged in the books."""

    def _stop_if_ready(self) -> None:
        if self._stopping and self.phase in INTERRUPTIBLE:
            self._open = None
        super()._stop_if_ready()
