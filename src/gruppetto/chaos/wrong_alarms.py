"""A core that minds its alarms wrongly; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from typing import Any

from gruppetto.protocol.actions import AlarmOver, SyncerAction
from gruppetto.protocol.events import LookedAround, SyncerEvent
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.watches import Watches

__all__ = ["LosesPatience", "NeverWithdraws", "SeesNoDisk"]


class NeverWithdraws(SyncerCore):
    """What was once an alarm stays one."""

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        return [action for action in super().step(now, event) if not isinstance(action, AlarmOver)]


class SeesNoDisk(SyncerCore):
    """What the shell sees beside the protocol is nothing to it."""

    def _on_looked_around(self, now: float, event: LookedAround) -> None:
        pass


class LosesPatience(SyncerCore):
    """Who has no part in three rounds is left out already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches = Watches(self._alarms, rounds=3)
