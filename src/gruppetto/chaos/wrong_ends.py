"""Syncers that behave wrongly when their last round is made, as their docstrings say; those of a run that is over come
last. :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.chaos.wrong_welcomes import RewordsItsWelcomes
from gruppetto.protocol.events import GoesOnElsewhere
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Hello, Progress, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import UNBORN

__all__ = [
    "BooksItsVisitors",
    "HandsBatchesOutAgain",
    "KeepsThemWaiting",
    "LeasesSlotsForEver",
    "LetsItsVisitorsTrain",
    "TakesItselfForTheRun",
]


class TakesItselfForTheRun(SyncerCore):
    """The last of its own rounds is the end."""

    def _on_goes_on_elsewhere(self, now: float, event: GoesOnElsewhere) -> None:
        pass


class KeepsThemWaiting(RewordsItsWelcomes):
    """Whoever comes when it has finished is told that training has not begun, and no Begin follows."""

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        return replace(welcome, begun=False) if self.phase is Phase.FINISHED else welcome


class HandsBatchesOutAgain(SyncerCore):
    """Its data slots stay where its own rounds have left them, whatever is trained on for other shards."""

    def _on_progress(self, now: float, news: Progress) -> None:
        before = dict(self.cursors)
        super()._on_progress(now, news)
        self.cursors = before


class LeasesSlotsForEver(SyncerCore):
    """Whoever comes when the run is over is taken in like anybody else."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        over, self.goes_on_elsewhere = self.is_over, self.goes_on_elsewhere or self.is_over
        super()._on_hello(now, hello)
        self.goes_on_elsewhere = self.goes_on_elsewhere and not over


class BooksItsVisitors(RewordsItsWelcomes):
    """It opens an account for everybody."""

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        if welcome.incarnation == UNBORN and member.learner not in self.ledger.accounts:
            self.ledger.open_account(member.learner)
        return welcome


class LetsItsVisitorsTrain(RewordsItsWelcomes):
    """It does not say that the run is over."""

    def _reworded(self, welcome: Welcome, member: Member, hello: Hello) -> Welcome:
        return replace(welcome, finished=False)
