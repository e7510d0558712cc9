"""Syncers with one thing done wrong, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gruppetto.protocol.actions import Persist, Publish, RoundClosed, Send, SyncerAction, TakeOuterStep
from gruppetto.protocol.events import Folded, OuterStepped, Persisted, PersistFailed, Settle, SyncerEvent
from gruppetto.protocol.membership import Member, MemberPhase
from gruppetto.protocol.messages import Answer, Donor, Hello, Progress, Refusal, RefusalReason, RejectionReason, Welcome
from gruppetto.protocol.norms import excess
from gruppetto.protocol.quorum import Verdict
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import UNBORN, Incarnation, LearnerId, Version

__all__ = [
    "AsksForWeightsAgain",
    "AsksOnlyOnce",
    "ComparesDifferences",
    "ComparesWithWhatItAdmits",
    "CountsRetriesAsVotes",
    "DoesNotWaitForFolds",
    "ForgetsItsCursors",
    "ForgetsItsRound",
    "ForgetsItsVersions",
    "ForgetsItsYardsticks",
    "ForgetsTheDead",
    "ForgetsTheFactor",
    "ForgetsTheQuorum",
    "ForgetsToVoid",
    "ForgetsWhenTheyAreDue",
    "ForgetsWhomItRetired",
    "FreshLearnersDonate",
    "FreshLearnersSeed",
    "GivesAnIncarnationTwice",
    "IgnoresEpochs",
    "IgnoresIncarnations",
    "MistakesTheDirection",
    "OverlooksTheFirstAnswers",
    "OverlooksTheLastAnswer",
    "OverlooksTheLastFold",
    "OverlooksTheQuorum",
    "PublishesBeforeItPersists",
    "RefusesAMajority",
    "RefusesTheQuorum",
    "RefusesWhoComesBack",
    "SettlesNothing",
    "SkipsARound",
    "StepsOnAnEmptyRound",
    "TakesAFailedPersistForGood",
    "TakesDuplicates",
    "TakesTheLate",
    "TakesWhatIsNotFinite",
    "TakesWhatIsStale",
    "TellsOfARoundTooEarly",
    "TellsOnlyContributors",
    "WantsMoreThanTheQuorum",
    "WeighsByTokens",
]


class PublishesBeforeItPersists(SyncerCore):
    """The new values are announced while they are still being written."""

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        super()._on_outer_stepped(now, event)
        persist = next((action for action in self._out if isinstance(action, Persist)), None)
        if persist is not None and event.round == self.round:
            self._on_persisted(now, Persisted(round=persist.round))
            self._out.sort(key=lambda action: isinstance(action, Persist))


class TakesAFailedPersistForGood(SyncerCore):
    """A disk that says no is taken for one that says yes."""

    def _on_persist_failed(self, now: float, event: PersistFailed) -> None:
        self._on_persisted(now, Persisted(round=event.round))


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
    overlooks = RejectionReason.DUPLICATE


class TakesWhatIsStale(_Lenient):
    overlooks = RejectionReason.STALE_BASE


class TakesWhatIsNotFinite(_Lenient):
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


class WantsMoreThanTheQuorum(SyncerCore):
    """``>`` where it must be ``>=``."""

    def _quorum(self, live: int) -> int:
        return super()._quorum(live) + 1


class ForgetsTheQuorum(SyncerCore):
    """One answer is enough."""

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        verdict = super()._closing_verdict(now, opened, live)
        return Verdict(close=True, why="one is enough") if opened.answers() else verdict


class DoesNotWaitForFolds(SyncerCore):
    """The outer step is taken while a contribution is still being folded in."""

    def _close_if_due(self, now: float) -> None:
        if self._open is not None and self._open.closing is not None:
            self._open.folding.clear()
        super()._close_if_due(now)
        if self.phase is Phase.GRACE and self._open is not None and self._open.closing is not None:
            self._open.folding.clear()
            super()._close_if_due(now)


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


class ForgetsTheDead(SyncerCore):
    """The ledger drops the account of a life that has ended."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        member = self.members.get(hello.learner)
        if member is not None and member.session != hello.session:
            self.ledger.accounts.pop(hello.learner, None)
        super()._on_hello(now, hello)


class GivesAnIncarnationTwice(SyncerCore):
    """Whoever is not known is in its first life, whatever it says of itself."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        known = self.members.get(hello.learner) is not None
        super()._on_hello(now, hello if known else replace(hello, incarnation=UNBORN))


class ComparesDifferences(SyncerCore):
    """``now - start >= length``: rounding may make it false at the very time that was asked for."""

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        assert opened.asked_at is not None
        end = opened.asked_at + opened.grace_s
        over = now - opened.asked_at >= opened.grace_s
        return super()._closing_verdict(now if over or now < end else math.nextafter(end, 0.0), opened, live)


class TellsOnlyContributors(SyncerCore):
    """Who missed the round does not get its result."""

    def _on_persisted(self, now: float, event: Persisted) -> None:
        told = self._open.participants() if self._open is not None else None
        super()._on_persisted(now, event)
        for i, action in enumerate(self._out):
            if isinstance(action, Publish) and told is not None:
                self._out[i] = replace(action, to=told)


class SkipsARound(SyncerCore):
    """After a persist that was slow, one round is left out."""

    def _on_persisted(self, now: float, event: Persisted) -> None:
        super()._on_persisted(now, event)
        if self._open is not None and self._open.closed_at is not None and now > self._open.closed_at + 1.0:
            self.round = type(self.round)(self.round + 1)


class AsksForWeightsAgain(SyncerCore):
    """Any learner that has nothing is asked to seed."""

    def _welcome(self, member: Member, hello: Hello) -> None:
        super()._welcome(member, hello)
        last = self._out[-1]
        if isinstance(last, Send) and isinstance(last.message, Welcome) and hello.can_seed:
            self._out[-1] = replace(last, message=replace(last.message, seed=True))


class TellsOfARoundTooEarly(SyncerCore):
    """A newcomer is told of the round that is just being made durable."""

    def _welcome(self, member: Member, hello: Hello) -> None:
        super()._welcome(member, hello)
        last = self._out[-1]
        if isinstance(last, Send) and isinstance(last.message, Welcome):
            self._out[-1] = replace(last, message=replace(last.message, round=self.round))


class AsksOnlyOnce(SyncerCore):
    """A refused contribution is never asked for again."""

    def _ask_again_if_short(self, member: Member) -> None:
        pass


class ForgetsToVoid(SyncerCore):
    """A merge that was thrown away stays in the books."""

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        opened = self._open
        if opened is None:
            return
        admitted, opened.admitted = opened.admitted, {}
        super()._on_outer_stepped(now, event)
        opened.admitted = admitted


class ForgetsWhenTheyAreDue(SyncerCore):
    """A shard of the syncer counts its own fragments alone, and spreads them as if there were no others."""

    def _open_next_round(self, now: float) -> None:
        self.schedule = self.setting.schedule
        super()._open_next_round(now)


class RefusesWhoComesBack(SyncerCore):
    """A process that has been away is taken for a superseded one."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        member = self.members.get(hello.learner)
        if member is not None and member.session == hello.session and member.phase is MemberPhase.AWAY:
            refusal = Refusal(reason=RefusalReason.SUPERSEDED, text="you have been away")
            self._send(hello.learner, hello.session, refusal)
        else:
            super()._on_hello(now, hello)


class SettlesNothing(SyncerCore):
    """A finished run is put away with its accounts open."""

    def _on_settle(self, now: float, event: Settle) -> None:
        self._out.append(Persist(round=self.round, fragments=(), state=self.snapshot()))


class StepsOnAnEmptyRound(SyncerCore):
    """A round that is short of answers is closed when somebody comes back."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        super()._on_hello(now, hello)
        opened = self._open
        if self.phase is Phase.GRACE and opened is not None and opened.asked_at is not None and opened.due:
            self.phase = Phase.MERGING
            self._out += self._closed(opened)

    def _closed(self, opened: OpenRound) -> list[SyncerAction]:
        closed = RoundClosed(
            round=opened.round,
            why="somebody came back",
            participants=opened.participants(),
            live=len(self.members.live()),
            grace_spent_s=0.0,
        )
        opened.closed_at = opened.asked_at
        return [closed, TakeOuterStep(round=opened.round, fragments=opened.due)]


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


class ForgetsItsYardsticks(SyncerCore):
    """After a restart anything is as good as anything."""

    def _restore(self, state: SyncerState) -> None:
        super()._restore(replace(state, yardsticks=(), value_norms=()))


class ForgetsWhomItRetired(SyncerCore):
    """Who slept while its slot was leased to a newcomer speaks on, and nobody heeds it."""

    def _let_in_again(self, now: float, news: Progress) -> None:
        pass


class WeighsByTokens(SyncerCore):
    """Many steps count as much as many tokens a step."""

    def _weight(self, answer: Answer) -> float:
        return float(answer.tokens)


class MistakesTheDirection(SyncerCore):
    """Who pulls with the others is taken for one that pulls back."""

    def _on_folded(self, now: float, event: Folded) -> None:
        super()._on_folded(now, replace(event, cosine=-(event.cosine or 0.0)))


class FreshLearnersSeed(SyncerCore):
    """While nobody is live, a learner that has never synchronised is asked for its first weights, and all is lost."""

    def _welcome(self, member: Member, hello: Hello) -> None:
        if self.versions and hello.can_seed and not self.members.live():
            self.phase, self._seeder = Phase.SEEDING, None
        super()._welcome(member, hello)


class FreshLearnersDonate(SyncerCore):
    """Whoever is connected is named as a donor, also one that is about to begin itself."""

    def _welcome(self, member: Member, hello: Hello) -> None:
        super()._welcome(member, hello)
        last = self._out[-1]
        if isinstance(last, Send) and isinstance(last.message, Welcome) and hello.needs_state:
            others = [m for m in self.members.connected() if m.donates_at and m is not member]
            donors = tuple(Donor(learner=m.learner, address=m.donates_at) for m in others)
            self._out[-1] = replace(last, message=replace(last.message, donors=donors))


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
