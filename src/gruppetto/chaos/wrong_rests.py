"""Learners that are wrong about what an encoding has left unsaid, as their docstrings say."""

from __future__ import annotations

from gruppetto.protocol.actions import KeepRest
from gruppetto.protocol.events import Taken
from gruppetto.protocol.learner import LearnerCore

__all__ = ["ForgetsItsRests", "KeepsARestTooSoon"]


class ForgetsItsRests(LearnerCore):
    """What was left unsaid stays so."""

    def _on_taken(self, now: float, event: Taken) -> None:
        pass


class KeepsARestTooSoon(LearnerCore):
    """Taken is merged, it thinks, also where the merge comes to nothing."""

    def _on_taken(self, now: float, event: Taken) -> None:
        if event.epoch == self.epoch:
            self._out.append(KeepRest(fragment=event.fragment, round=event.round, tokens=event.tokens))
