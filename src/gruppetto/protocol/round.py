"""A round while it is open: who was asked, who answered, who is still waited for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gruppetto.protocol.membership import LIVE, Member
from gruppetto.protocol.messages import Ask
from gruppetto.protocol.quorum import Verdict
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Round

__all__ = ["OpenRound", "Phase"]


class Phase(StrEnum):
    """Where the syncer stands."""

    SEEDING = "seeding"
    """No weights yet; the first learner has been asked for its own."""
    STARTING = "starting"
    """Waiting for enough ready learners to begin."""
    QUORUM = "quorum"
    """Waiting until K learners have reached the round."""
    GRACE = "grace"
    """Asked; taking answers."""
    MERGING = "merging"
    PERSISTING = "persisting"
    PUBLISHING = "publishing"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Told to end in mid-run, with everything durable."""


@dataclass(slots=True, kw_only=True)
class OpenRound:
    """Round t from its opening to its publication."""

    round: Round
    due: tuple[Fragment, ...]
    opened_at: float
    in_flight: int = 1
    """D: the fleet has moved on when it is so many steps further."""
    asked_at: float | None = None
    grace_s: float = 0.0
    closed_at: float | None = None
    closing: Verdict | None = None
    """Why it closes; final once given."""
    live: int = 0
    """Learners alive when the verdict was given, which its quorum was measured by."""
    ask: Ask | None = None
    """The one for all that is due, which nearly everybody is sent."""
    asked: dict[LearnerId, int] = field(default_factory=dict)
    """Who was asked, and its clock then."""
    admitted: dict[tuple[LearnerId, Fragment], int] = field(default_factory=dict)
    """Tokens booked as merged, per admitted contribution."""
    lives: dict[tuple[LearnerId, Fragment], Incarnation] = field(default_factory=dict)
    """In which life of its learner each of those was made that came when the round was open."""
    early: set[tuple[LearnerId, Fragment]] = field(default_factory=set)
    """Those of them that came before the round asked, from learners that left on notice."""
    rejected: set[tuple[LearnerId, Fragment]] = field(default_factory=set)
    too_long: set[tuple[LearnerId, Fragment]] = field(default_factory=set)
    """Offered beyond the yardstick under ``norm_gate = "reject"``, refused or not."""
    expected_at: dict[LearnerId, float] = field(default_factory=dict)
    """When a learner that deferred will be at its next step boundary, by its own word."""
    folding: set[tuple[LearnerId, Fragment]] = field(default_factory=set)
    enough: bool = False
    """It had a quorum of answers when it was last looked at."""
    _last_seen_to_come: Member | None = None

    def answers(self) -> int:
        """Admitted contributions of the fragment that has the fewest."""
        return self._fewest(self.admitted)

    def answers_that_count(self, live: Sequence[Member]) -> int:
        """What came ahead of the round counts like any other answer, but not alone: one who has left must not close a
        round before those who ride have had their turn, nor when nobody rides."""
        if self.early and not self._fewest(self.admitted.keys() - self.early):
            to_come = [m for m in live if m.learner in self.asked and not self.has_settled(m.learner)]
            if to_come or not live:
                return 0
        return self.answers()

    def participants(self) -> tuple[LearnerId, ...]:
        return tuple(sorted({learner for learner, _ in self.admitted}))

    def tokens_by(self, participants: Iterable[LearnerId]) -> dict[LearnerId, int]:
        tokens_by = dict.fromkeys(participants, 0)
        for (name, _), tokens in self.admitted.items():
            tokens_by[name] += tokens
        return tokens_by

    def has_settled(self, learner: LearnerId) -> bool:
        """All its contributions are in, or refused."""
        for p in self.due:  # noqa: SIM110 - asked for every learner at every answer, so no generator
            if (learner, p) not in self.admitted and (learner, p) not in self.rejected:
                return False
        return True

    def moved_on(self, live: Iterable[Member]) -> int:
        """Live learners at clock t + D or beyond, so that waiting longer would cost them something.

        While the syncer keeps pace, that is, for D = 1, the paper's rule. When it does not, all are past every round
        before it has even asked; then it takes D whole steps since the ask.
        """
        round = self.round
        past = [m for m in live if m.clock > round]
        return sum(1 for m in past if m.clock > self._still_with(m)) if past else 0

    def _fewest(self, contributions: Collection[tuple[LearnerId, Fragment]]) -> int:
        if len(self.due) == 1:
            return len(contributions)
        per_fragment = dict.fromkeys(self.due, 0)
        for _, fragment in contributions:
            per_fragment[fragment] += 1
        return min(per_fragment.values(), default=0)

    def _still_with(self, member: Member) -> int:
        """The last clock at which waiting costs this learner nothing."""
        asked_at = self.asked.get(member.learner, self.round)
        return self.round + self.in_flight - 1 if asked_at <= self.round else asked_at + self.in_flight

    def somebody_to_come(self, live: Sequence[Member]) -> bool:
        """Whether :meth:`waited_for` is more than 0. It is mostly the same one as at the last look, and the last of
        all: answers come in the order in which they were asked for."""
        if self.one_is_still_to_come():
            return True
        self._last_seen_to_come = next(filter(self._is_to_come, reversed(live)), None)
        return self._last_seen_to_come is not None

    def one_is_still_to_come(self) -> bool:
        """Whoever was seen to come at the last look still is."""
        seen = self._last_seen_to_come
        return seen is not None and seen.phase is LIVE and self._is_to_come(seen)

    def _is_to_come(self, member: Member) -> bool:
        assert self.asked_at is not None
        name = member.learner
        if name not in self.asked or self.has_settled(name):
            return False
        expected_at = self.expected_at.get(name)
        return expected_at is None or expected_at <= self.asked_at + self.grace_s

    def waited_for(self, live: Iterable[Member]) -> int:
        """Live learners that may still answer in time. One whose own step time says it cannot is not waited for."""
        return sum(map(self._is_to_come, live))
