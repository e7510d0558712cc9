"""Gates with one thing done wrong, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gruppetto.protocol.events import Folded
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Answer, RejectionReason
from gruppetto.protocol.norms import excess
from gruppetto.protocol.round import Phase
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Incarnation, LearnerId

__all__ = [
    "ComparesWithWhatItAdmits",
    "CountsRetriesAsVotes",
    "ForgetsTheFactor",
    "IgnoresEpochs",
    "IgnoresIncarnations",
    "MistakesTheDirection",
    "RefusesAMajority",
    "RefusesTheQuorum",
    "TakesDuplicates",
    "TakesTheLate",
    "TakesWhatIsNotFinite",
    "TakesWhatIsStale",
    "WeighsByTokens",
]


class _Lenient(SyncerCore):
    """The gate overlooks one reason."""

    overlooks: RejectionReason

    def judge(self, answer: Answer) -> RejectionReason | None:
        reason = super().judge(answer)
        return None if reason is self.overlooks and self._may_take(answer) else reason

    def _may_take(self, answer: Answer) -> bool:
        opened = self._open
        return (
            self.phase is Phase.GRACE
            and opened is not None
            and opened.closing is None
            and answer.fragment in opened.due
            and answer.learner in self.ledger.accounts
            and answer.tokens > 0
        )


class TakesDuplicates(_Lenient):
    """What has been folded is folded again."""

    overlooks = RejectionReason.DUPLICATE


class TakesWhatIsStale(_Lenient):
    """Whatever it was computed on."""

    overlooks = RejectionReason.STALE_BASE


class TakesWhatIsNotFinite(_Lenient):
    """NaN is a number like any other."""

    overlooks = RejectionReason.NOT_FINITE


class TakesTheLate(_Lenient):
    """A contribution to a round that has closed goes into the next one."""

    overlooks = RejectionReason.LATE

    def _may_take(self, answer: Answer) -> bool:
        return super()._may_take(answer) and self._open is not None and answer.round == self._open.round - 1


class IgnoresEpochs(SyncerCore):
    """What was meant for an earlier life of the syncer counts."""

    def judge(self, answer: Answer) -> RejectionReason | None:
        return super().judge(replace(answer, epoch=self.epoch))

    def _on_progress(self, now: float, news: Any) -> None:
        super()._on_progress(now, replace(news, epoch=self.epoch))


class IgnoresIncarnations(SyncerCore):
    """A name is enough."""

    def judge(self, answer: Answer) -> RejectionReason | None:
        member = self.members.get(answer.learner)
        return super().judge(answer if member is None else replace(answer, incarnation=member.incarnation))

    def _speaker(self, now: float, learner: LearnerId, incarnation: Incarnation) -> Member | None:
        member = self.members.get(learner)
        return super()._speaker(now, learner, incarnation if member is None else member.incarnation)


class ComparesWithWhatItAdmits(SyncerCore):
    """What is too long casts no vote: when everybody grows, the yardstick stays behind for ever."""

    def _vote(self, answer: Answer) -> None:
        if not self._caps(answer):
            super()._vote(answer)


class ForgetsTheFactor(SyncerCore):
    """Whoever is longer than usual is too long."""

    def _caps(self, answer: Answer) -> tuple[tuple[int, float], ...]:
        return excess(answer.norms, self.yardsticks.of(answer.fragment), 1.0)


class RefusesAMajority(SyncerCore):
    """Whoever is too long is refused, however many there are."""

    def _may_refuse(self, too_long: int, live: int) -> bool:
        return True


class RefusesTheQuorum(SyncerCore):
    """A minority is refused, though the quorum needs it."""

    def _may_refuse(self, too_long: int, live: int) -> bool:
        return 2 * too_long <= live


class CountsRetriesAsVotes(SyncerCore):
    """A learner that is refused and asked again has a vote for every try."""

    def _vote(self, answer: Answer) -> None:
        again = self._open is not None and (answer.learner, answer.fragment) in self._open.too_long
        voter = LearnerId(f"{answer.learner} again") if again else answer.learner
        self.yardsticks.offered(voter, answer.round, answer.fragment, answer.norms, base_version=answer.base_version)


class WeighsByTokens(SyncerCore):
    """Many steps count as much as many tokens a step."""

    def _weight(self, answer: Answer) -> float:
        return float(answer.tokens)


class MistakesTheDirection(SyncerCore):
    """Who pulls with the others is taken for one that pulls back."""

    def _on_folded(self, now: float, event: Folded) -> None:
        super()._on_folded(now, replace(event, cosine=-(event.cosine or 0.0)))
