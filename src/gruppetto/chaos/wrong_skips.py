"""Syncers that say of too many events that nothing changes; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from gruppetto.protocol.events import Folded, SyncerEvent
from gruppetto.protocol.messages import Answer, Progress
from gruppetto.protocol.round import Phase
from gruppetto.protocol.syncer import SyncerCore

__all__ = [
    "OverlooksTheFirstAnswers",
    "OverlooksTheLastAnswer",
    "OverlooksTheLastFold",
    "OverlooksTheQuorum",
]


class OverlooksTheLastFold(SyncerCore):
    """That a fold changes nothing is said of the last one that a round waits for, too."""

    def _stays_open(self, now: float, event: SyncerEvent) -> bool:
        return self.phase is Phase.GRACE if isinstance(event, Folded) else super()._stays_open(now, event)


class OverlooksTheLastAnswer(SyncerCore):
    """That an answer changes nothing is said of that of the one whom the round waits for, too."""

    def _stays_open(self, now: float, event: SyncerEvent) -> bool:
        waits = self._goes_on_until is not None and now < self._goes_on_until
        return waits if isinstance(event, Answer) else super()._stays_open(now, event)


class OverlooksTheQuorum(SyncerCore):
    """That a step changes nothing is said of the one that completes the quorum, too."""

    def _stays_short(self, now: float, event: SyncerEvent) -> bool:
        return isinstance(event, Progress) or super()._stays_short(now, event)


class OverlooksTheFirstAnswers(SyncerCore):
    """While a round is short of answers, none of them is thought to change that."""

    def _stays_short(self, now: float, event: SyncerEvent) -> bool:
        return isinstance(event, Answer) or super()._stays_short(now, event)
