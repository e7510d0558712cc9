"""Learners with one thing done wrong, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gruppetto.protocol.events import Boundary, LinkDown, Recovered, StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Announcement, Ask, Welcome
from gruppetto.protocol.units import NEVER, Fragment

__all__ = [
    "AnswersWithoutWork",
    "BeginsItsSlotAgain",
    "BeginsOnWhateverItFinds",
    "ForgetsWhatItHeldBack",
    "HeedsEveryEpoch",
    "HoldsUpItsOwnRound",
    "KeepsOldSnapshots",
    "KeepsTheWorkOfItsLastLife",
    "LeavesBeforeItHasAll",
    "NeverResetsItsCounters",
    "StampsAtTheEnd",
    "StaysBehindAfterAReconnect",
    "WaitsForItsSyncer",
]


class StampsAtTheEnd(LearnerCore):
    """The Lamport stamp is taken when the step ends."""

    def _on_step_started(self, now: float, event: StepStarted) -> None:
        self._started_at = now

    def _on_step_done(self, now: float, event: StepDone) -> None:
        self.clock = 1 + max(self.clock, self.newest_round)
        super()._on_step_done(now, event)


class AnswersWithoutWork(LearnerCore):
    """Copies of what it has just received are offered as contributions."""

    def _take_snapshots(self) -> None:
        idle = [fragment for fragment in self.fragments if fragment.from_steps == self.steps]
        for fragment in idle:
            fragment.from_steps -= 1
        super()._take_snapshots()
        for fragment in idle:
            fragment.from_steps += 1


class KeepsOldSnapshots(LearnerCore):
    """A snapshot outlives the boundary, and the value it was taken against."""

    def _take_snapshots(self) -> None:
        old = set(self._snapshots)
        super()._take_snapshots()
        self._snapshots |= old

    def _apply_arrived(self, fragment: Fragment) -> Any:
        at_hand = self._snapshots & {fragment}
        applied = super()._apply_arrived(fragment)
        self._snapshots |= at_hand
        return applied


class WaitsForItsSyncer(LearnerCore):
    """Without a link there is no training."""

    def _on_link_down(self, now: float, event: LinkDown) -> None:
        super()._on_link_down(now, event)
        self.begun = False


class HeedsEveryEpoch(LearnerCore):
    """Whoever asks is answered."""

    def _on_ask(self, now: float, ask: Ask) -> None:
        super()._on_ask(now, replace(ask, epoch=self.epoch))

    def _on_announcement(self, now: float, news: Announcement) -> None:
        super()._on_announcement(now, replace(news, epoch=self.epoch))


class NeverResetsItsCounters(LearnerCore):
    """Work that was overwritten is counted in the next contribution."""

    def _apply_arrived(self, fragment: Fragment) -> Any:
        state = self.fragments[fragment]
        steps, tokens = self.c_steps(fragment), self.c_tokens(fragment)
        applied = super()._apply_arrived(fragment)
        state.from_steps, state.from_tokens = state.from_steps - steps, state.from_tokens - tokens
        return applied


class BeginsItsSlotAgain(LearnerCore):
    """A new life starts its data slot at the first batch, whatever was merged of it."""

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        super()._on_welcome(now, replace(welcome, cursor=0))


class KeepsTheWorkOfItsLastLife(LearnerCore):
    """A new life counts from zero, but what the model holds stays in it."""

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        arrived = dict(self._arrived)
        super()._on_welcome(now, welcome)
        self._arrived = arrived


class StaysBehindAfterAReconnect(LearnerCore):
    """What was on its way when the link broke is thought to come still."""

    def _on_link_down(self, now: float, event: LinkDown) -> None:
        self.linked = False
        self._owed.clear()

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        wanted = dict(self._wanted)
        self._wanted.clear()
        super()._on_welcome(now, replace(welcome, versions=()))
        self._wanted = wanted
        for p, version in enumerate(welcome.versions):
            self._want(Fragment(p), version)


class BeginsOnWhateverItFinds(LearnerCore):
    """The bases of a donor, or of an old checkpoint, are good enough, whatever the Welcome said."""

    def _on_recovered(self, now: float, event: Recovered) -> None:
        found = {Fragment(p) for p, version in enumerate(event.versions) if version != NEVER}
        self._held_back = {p: v for p, v in self._held_back.items() if p not in found}
        super()._on_recovered(now, event)


class ForgetsWhatItHeldBack(LearnerCore):
    """What was announced during the search for a state is never pulled, also if none was found."""

    def _on_recovered(self, now: float, event: Recovered) -> None:
        super()._on_recovered(now, event)
        self._out.clear()
        self._wanted.clear()


class HoldsUpItsOwnRound(LearnerCore):
    """Having run too far ahead it waits for a round, also for one that waits for a step of its own."""

    def is_too_far(self, most: int) -> bool:
        return self.clock - self.newest_round > most


class LeavesBeforeItHasAll(LearnerCore):
    """On notice it gives what it has at once, and not what it may keep of the rest when a value has come."""

    @property
    def gives_more(self) -> bool:
        return False

    def _on_boundary(self, now: float, event: Boundary) -> None:
        self._at_boundary()
