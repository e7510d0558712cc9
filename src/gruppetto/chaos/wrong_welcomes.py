"""Syncers that receive those who come wrongly, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must
notice."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.protocol.actions import Send
from gruppetto.protocol.membership import Member, MemberPhase
from gruppetto.protocol.messages import Donor, Hello, Progress, Refusal, RefusalReason, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import UNBORN

__all__ = [
    "AsksForWeightsAgain",
    "ForgetsTheDead",
    "ForgetsWhomItRetired",
    "FreshLearnersDonate",
    "FreshLearnersSeed",
    "GivesAnIncarnationTwice",
    "RefusesWhoComesBack",
    "RewordsItsWelcomes",
    "TellsOfARoundTooEarly",
]


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


class RewordsItsWelcomes(SyncerCore):
    """A Welcome says something else."""

    def _welcome(self, member: Member, hello: Hello) -> None:
        super()._welcome(member, hello)
        last = self._out[-1]
        if isinstance(last, Send) and isinstance(last.message, Welcome):
            self._out[-1] = replace(last, message=self._reworded(last.message, member, hello))

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        raise NotImplementedError


class AsksForWeightsAgain(RewordsItsWelcomes):
    """Any learner that has nothing is asked to seed."""

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        return replace(welcome, seed=True) if hello.can_seed else welcome


class TellsOfARoundTooEarly(RewordsItsWelcomes):
    """A newcomer is told of the round that is just being made durable."""

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        return replace(welcome, round=self.round)


class RefusesWhoComesBack(SyncerCore):
    """A process that has been away is taken for a superseded one."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        member = self.members.get(hello.learner)
        if member is not None and member.session == hello.session and member.phase is MemberPhase.AWAY:
            refusal = Refusal(reason=RefusalReason.SUPERSEDED, text="you have been away")
            self._send(hello.learner, hello.session, refusal)
        else:
            super()._on_hello(now, hello)


class ForgetsWhomItRetired(SyncerCore):
    """Who slept while its slot was leased to a newcomer speaks on, and nobody heeds it."""

    def _let_in_again(self, now: float, news: Progress) -> None:
        pass


class FreshLearnersSeed(SyncerCore):
    """While nobody is live, a learner that has never synchronised is asked for its first weights, and all is lost."""

    def _welcome(self, member: Member, hello: Hello) -> None:
        if self.versions and hello.can_seed and not self.members.live():
            self.phase, self._seeder = Phase.SEEDING, None
        super()._welcome(member, hello)


class FreshLearnersDonate(RewordsItsWelcomes):
    """Whoever is connected is named as a donor, also one that is about to begin itself."""

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        if not hello.needs_state:
            return welcome
        others = [m for m in self.members.connected() if m.donates_at and m is not member]
        return replace(welcome, donors=tuple(Donor(learner=m.learner, address=m.donates_at) for m in others))
