"""Cores that do one thing wrong while several rounds are in flight; see :mod:`gruppetto.chaos.canaries`."""

from __future__ import annotations

from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.round import OpenRound
from gruppetto.protocol.syncer import SyncerCore

__all__ = [
    "BooksWhatIsInFlight",
    "ClosesWhoeverIsReady",
    "CountsAnswersOfTheNext",
    "OpensOneTooMany",
    "OverlooksTheNextQuorum",
]


class ClosesWhoeverIsReady(SyncerCore):
    """The open round that has its answers first closes first."""

    def _close_if_due(self, now: float) -> None:
        first = self._open
        if first is not None and first.closing is None and self._later:
            second = self._later[0]
            if second.answers() >= self._quorum(len(self.members.live())) > first.answers():
                self._open, self._later[0] = second, first
        super()._close_if_due(now)


class CountsAnswersOfTheNext(SyncerCore):
    """An answer to any open round counts for the first one, too."""

    def _admit(self, answer: Answer, caps: tuple[tuple[int, float], ...]) -> None:
        super()._admit(answer, caps)
        if self._open is not None and self._open_of(answer.round) is not self._open:
            self._open.admitted.setdefault((answer.learner, answer.fragment), answer.tokens)


class BooksWhatIsInFlight(SyncerCore):
    """What is folded into a round that is still in flight is merged, as far as the books know."""

    def _admit(self, answer: Answer, caps: tuple[tuple[int, float], ...]) -> None:
        overlaps, self._overlaps = self._overlaps, False
        super()._admit(answer, caps)
        self._overlaps = overlaps


class OpensOneTooMany(SyncerCore):
    """``<=`` where it must be ``<``."""

    def _may_open_behind(self, youngest: OpenRound) -> bool:
        return len(self._later) < self.setting.rounds_in_flight and not self._is_last(youngest.round)


class OverlooksTheNextQuorum(SyncerCore):
    """What does not change the first round is thought to change none."""

    def _changes_nothing(self, now: float, event: SyncerEvent) -> bool:
        later, self._later = self._later, []
        nothing = super()._changes_nothing(now, event)
        self._later = later
        return nothing
