"""Cores that do one thing wrong when a checkpoint of the whole run is taken, or resumed from; see
:mod:`gruppetto.chaos.canaries`."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.protocol.events import Arrived, SyncerEvent
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.marking import OpenMark
from gruppetto.protocol.messages import Hello, Marked, Marker, Welcome
from gruppetto.protocol.state import LearnerState, SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import UNBORN, Epoch, Round

__all__ = [
    "AppliesBeforeItIsAnnounced",
    "BelievesEveryMark",
    "CutsBetweenCommits",
    "ForgetsWhomItAwaits",
    "NeverGivesUp",
    "RecordsInTheMiddle",
    "ResumesAsAnotherLife",
    "ResumesWithoutItsCounters",
    "SavesTooLate",
    "TakesEveryPart",
    "TrustsWhatItSavedLongAgo",
]


class SavesTooLate(LearnerCore):
    """The part is saved after what was announced behind the marker has been applied."""

    def _save(self, marker: Marker) -> None:
        self._apply_up_to(self.newest_round)
        super()._save(marker)


class AppliesBeforeItIsAnnounced(LearnerCore):
    """What has arrived is applied, whether or not the control stream has got so far."""

    def _on_arrived(self, now: float, event: Arrived) -> None:
        super()._on_arrived(now, event)
        self.newest_round = Round(max(self.newest_round, event.version))


class ResumesAsAnotherLife(LearnerCore):
    """It does not say whom it continues, so the syncer gives it a new life; but its work stays in the model."""

    def restore(self, state: LearnerState, *, same_life: bool = False) -> None:
        super().restore(state, same_life=same_life)
        self._continues, self.incarnation, self._kept = "", UNBORN, same_life

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        kept = getattr(self, "_kept", False) and welcome.incarnation != self.incarnation
        counters = [(f.from_steps, f.from_tokens) for f in self.fragments]
        before = (self.steps, self.tokens)
        super()._on_welcome(now, welcome)
        if kept:
            self._kept = False
            self._arrived.clear()
            self.steps, self.tokens = before
            for fragment, (steps, tokens) in zip(self.fragments, counters, strict=True):
                fragment.from_steps, fragment.from_tokens = steps, tokens


class ResumesWithoutItsCounters(LearnerCore):
    """The work since the bases is in the model, and nobody remembers how much it was."""

    def restore(self, state: LearnerState, *, same_life: bool = False) -> None:
        super().restore(state, same_life=same_life)
        for fragment in self.fragments:
            fragment.from_steps, fragment.from_tokens = self.steps, self.tokens


class RecordsInTheMiddle(SyncerCore):
    """The syncer's part is recorded at once, whatever the open round has merged by then."""

    def _mind_the_mark(self, now: float, event: SyncerEvent) -> None:
        if self._mark is not None and self._mark.round is None and self.versions:
            self._cut(self._mark)
        super()._mind_the_mark(now, event)


class ForgetsWhomItAwaits(SyncerCore):
    """A resumed syncer does not know the lives that were resumed with it."""

    def _restore(self, state: SyncerState) -> None:
        members = tuple(replace(member, awaited=False) for member in state.members)
        super()._restore(replace(state, members=members))


class TrustsWhatItSavedLongAgo(LearnerCore):
    """A version has one value; what does it matter what the run has gone back from since?"""

    def still_stands(self, saved_in: Epoch) -> bool:
        return True


class CutsBetweenCommits(SyncerCore):
    """The newest values are recorded, though the newest commit does not have them."""

    def _mind_the_mark(self, now: float, event: SyncerEvent) -> None:
        unsaved, self._unsaved = self._unsaved, set()
        super()._mind_the_mark(now, event)
        self._unsaved = unsaved


class TakesEveryPart(SyncerCore):
    """Whoever says that it continues the present life does so, though the run itself was never resumed."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        member = self.members.get(hello.learner)
        if member is not None and hello.continues:
            member.awaited, member.session = True, hello.continues
        super()._on_hello(now, hello)


class BelievesEveryMark(SyncerCore):
    """A part counts whatever it is a part of: an older checkpoint, or another life of the syncer."""

    def _on_marked(self, now: float, news: Marked) -> None:
        mark = self._mark
        member = self.members.get(news.learner)
        if mark is not None and mark.round is not None and member is not None:
            mark.waiting.pop(news.learner, None)
            mark.parts[news.learner] = (member.incarnation, news.text)


class NeverGivesUp(SyncerCore):
    """A learner that does not answer is waited for, for ever."""

    def _give_up(self, mark: OpenMark) -> None:
        mark.give_up_at *= 2
