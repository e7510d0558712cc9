"""Cores that keep the names in their books wrongly; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gruppetto.protocol.actions import SyncerAction
from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["ForgetsWhoDeparted", "NamesWhoeverWasHere"]


class ForgetsWhoDeparted(SyncerCore):
    """Who left long ago is not named any more, and not in the sum either."""

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        before = self.ledger.departed.consumed
        actions = super().step(now, event)
        self.ledger.departed.consumed = before
        return actions


class NamesWhoeverWasHere(SyncerCore):
    """A commit names everybody who was ever here, whatever it is told."""

    def __init__(self, setting: ProtocolSetting, **rest: Any) -> None:
        super().__init__(replace(setting, departed_named=1024), **rest)
