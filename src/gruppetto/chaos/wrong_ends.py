"""Shards that have finished before others and behave wrongly, as their docstrings say; :mod:`gruppetto.chaos.canaries`
says who must notice."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.chaos.wrong_welcomes import RewordsItsWelcomes
from gruppetto.protocol.events import GoesOnElsewhere
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Hello, Progress, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["HandsBatchesOutAgain", "KeepsThemWaiting", "TakesItselfForTheRun"]


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
