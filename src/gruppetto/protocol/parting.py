"""Contributions of learners that leave on notice: they come ahead of their round, and are folded at once (section 8).

A fragment has one running merge. Between two rounds at which it is due nobody changes the fragment, so that what is
computed on its current version today is as good in its next round. Until then the contribution is a promise: a syncer
that dies before has lost it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.protocol.messages import Answer
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.units import Fragment, LearnerId, Round

__all__ = ["EarlyParts", "round_of_merge"]


def round_of_merge(
    fragment: Fragment, schedule: Schedule, *, phase: Phase, opened: OpenRound | None, closed: Round, last: Round | None
) -> Round | None:
    """The round whose outer step will take what is folded into ``fragment`` now; None if nothing may be folded.

    ``closed`` is the newest closed round, ``last`` the last one of the run. Nothing may be folded from the verdict on a
    round until its outer step: it would be in a merge that is closing, or on a base that is about to change.
    """
    if phase is Phase.FINISHED or (phase is Phase.PERSISTING and opened is None):
        return None  # there is nothing any more, or nothing yet, that a contribution could stand on
    if opened is not None and fragment in opened.due:
        if phase in (Phase.QUORUM, Phase.GRACE) and opened.closing is None:
            return opened.round
        if phase in (Phase.GRACE, Phase.MERGING):
            return None
    after = closed if opened is None else opened.round
    following = schedule.next_due(fragment, after)
    return following if last is None or following <= last else None


@dataclass(slots=True, kw_only=True)
class _Early:
    round: Round
    tokens: int
    folding: bool = True


class EarlyParts:
    """What waits in running merges for a round that has not opened yet."""

    def __init__(self) -> None:
        self._parts: dict[tuple[LearnerId, Fragment], _Early] = {}

    def __contains__(self, key: tuple[LearnerId, Fragment]) -> bool:
        return key in self._parts

    def add(self, answer: Answer) -> None:
        """It is admitted, and being folded."""
        self._parts[answer.learner, answer.fragment] = _Early(round=answer.round, tokens=answer.tokens)

    def folded(self, learner: LearnerId, fragment: Fragment) -> None:
        """The fold has ended; harmless if it was none of these."""
        part = self._parts.get((learner, fragment))
        if part is not None:
            part.folding = False

    def move_to(self, opened: OpenRound) -> None:
        """Their round has opened: they are its first answers."""
        for key in [key for key, part in self._parts.items() if part.round == opened.round]:
            part = self._parts.pop(key)
            opened.admitted[key] = part.tokens
            opened.early.add(key)
            if part.folding:
                opened.folding.add(key)
