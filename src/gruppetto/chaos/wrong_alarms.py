"""A core that minds its alarms wrongly; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from gruppetto.protocol.actions import Alarm, AlarmKind, AlarmOver, SyncerAction
from gruppetto.protocol.events import LookedAround, SyncerEvent
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["LeavesThemOutQuietly", "NeverWithdraws", "SeesNoDisk"]


class NeverWithdraws(SyncerCore):
    """What was once an alarm stays one."""

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        return [action for action in super().step(now, event) if not isinstance(action, AlarmOver)]


class SeesNoDisk(SyncerCore):
    """What the shell sees beside the protocol is nothing to it."""

    def _on_looked_around(self, now: float, event: LookedAround) -> None:
        pass


class LeavesThemOutQuietly(SyncerCore):
    """Who is live and never merged is not worth a word."""

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        said = super().step(now, event)
        return [a for a in said if not (isinstance(a, Alarm | AlarmOver) and a.kind is AlarmKind.LEFT_OUT)]
