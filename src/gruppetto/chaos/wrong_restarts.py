"""Syncers that forget something when they are started again; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Version

__all__ = [
    "ForgetsItsCursors",
    "ForgetsItsRound",
    "ForgetsItsVersions",
    "ForgetsItsYardsticks",
]


class ForgetsItsVersions(SyncerCore):
    """A restart begins to count versions again."""

    def _restore(self, state: SyncerState) -> None:
        super()._restore(state)
        self.versions = self.published = (Version(0),) * self.setting.num_fragments


class ForgetsItsRound(SyncerCore):
    """A restart begins to count rounds again."""

    def _restore(self, state: SyncerState) -> None:
        super()._restore(replace(state, round=type(state.round)(0)))


class ForgetsItsCursors(SyncerCore):
    """A restart hands out every data slot from its beginning."""

    def _restore(self, state: SyncerState) -> None:
        super()._restore(replace(state, cursors=()))


class ForgetsItsYardsticks(SyncerCore):
    """After a restart anything is as good as anything."""

    def _restore(self, state: SyncerState) -> None:
        super()._restore(replace(state, yardsticks=(), value_norms=()))
