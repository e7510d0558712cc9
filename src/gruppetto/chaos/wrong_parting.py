"""Cores that take leave wrongly, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.protocol.events import OuterStepped
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Answer, RejectionReason
from gruppetto.protocol.parting import EarlyParts
from gruppetto.protocol.quorum import Verdict
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, Round

__all__ = [
    "BooksAPromiseAtOnce",
    "ClosesOnWhatCameAhead",
    "ForgetsItsPromises",
    "KeepsItsPromisesTooSoon",
    "RemembersPromisesOfTheDead",
    "TakesAStaleParting",
    "TakesLeaveOfAClosingRound",
]


class BooksAPromiseAtOnce(SyncerCore):
    """What is folded ahead of its round is merged, as far as the books know."""

    def _on_answer(self, now: float, answer: Answer) -> None:
        super()._on_answer(now, answer)
        if answer.parting:
            self.ledger.kept(answer.learner, answer.fragment)


class KeepsItsPromisesTooSoon(SyncerCore):
    """Whatever round is merged, all that was promised is merged with it."""

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        for learner, waiting in list(self.ledger.promised_by.items()):
            for p in range(len(waiting)):
                self.ledger.kept(learner, Fragment(p))
        super()._on_outer_stepped(now, event)


class TakesLeaveOfAClosingRound(SyncerCore):
    """Until the outer step is taken its round is still the next one, though its merge has closed."""

    def _round_of_merge(self, fragment: Fragment) -> Round | None:
        opened = self._open
        if opened is not None and fragment in opened.due and self.phase in (Phase.GRACE, Phase.MERGING):
            return opened.round
        return super()._round_of_merge(fragment)


class ForgetsItsPromises(SyncerCore):
    """A round opens as if nothing had come ahead of it."""

    def _open_next_round(self, now: float) -> None:
        self._early = EarlyParts()
        super()._open_next_round(now)


class RemembersPromisesOfTheDead(SyncerCore):
    """The running merges have gone with the last life; what was promised in it has not."""

    def _restore(self, state: SyncerState) -> None:
        super()._restore(state)
        self.ledger = state.ledger.copy()


class TakesAStaleParting(SyncerCore):
    """What comes too late for its round is as good in the next one, whatever it was computed on."""

    def _on_answer(self, now: float, answer: Answer) -> None:
        following = self._round_of_merge(answer.fragment)
        super()._on_answer(now, replace(answer, round=following) if answer.parting and following else answer)

    def judge(self, answer: Answer) -> RejectionReason | None:
        reason = super().judge(answer)
        lenient = answer.parting and reason is RejectionReason.STALE_BASE and answer.tokens > 0
        return None if lenient else reason


class ClosesOnWhatCameAhead(SyncerCore):
    """The answers of those who have left close a round before anybody else has had a turn."""

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        early, opened.early = opened.early, set()
        verdict = super()._closing_verdict(now, opened, live)
        opened.early = early
        return verdict
