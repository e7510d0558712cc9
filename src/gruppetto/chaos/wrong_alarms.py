"""A core that minds its alarms wrongly; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from gruppetto.protocol.actions import AlarmOver, SyncerAction
from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["NeverWithdraws"]


class NeverWithdraws(SyncerCore):
    """What was once an alarm stays one."""

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        return [action for action in super().step(now, event) if not isinstance(action, AlarmOver)]
