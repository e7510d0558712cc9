"""Whether each rest is said once: what an encoding leaves unsaid goes with the next contribution, if it has counted."""

from __future__ import annotations

from gruppetto.chaos.invariants import demand
from gruppetto.chaos.truth import Content, Work

__all__ = ["Owing"]


class Owing:
    """Follows the contributions of all learners, by the numbers of their snapshots."""

    def __init__(self) -> None:
        self._told: dict[int, float] = {}
        """When a learner was told that a contribution of it is in."""
        self._merged = {0}
        """All that were ever merged; 0 is nobody's."""

    def told_of(self, number: int, now: float) -> None:
        """A learner hears that the contribution of this number is in."""
        self._told.setdefault(number, now)

    def merging(self, work: Work, base: Content) -> None:
        """``work`` is about to be merged into ``base``. Raises :class:`~gruppetto.chaos.invariants.BrokenWorldError`.

        It has to say the rest of the contribution before it that is in ``base``, if its learner could know that it is;
        else the rest that was owed then. Which one that is, nobody can tell after a new life of the syncer.
        """
        never = work.owes not in self._merged
        demand(not never, "rests-are-said-once", lambda: f"{work} owes the rest of what was never merged")
        self._merged.add(work.number)
        before = _before(work, base)
        if before is None or before.life[0] != work.life[0]:
            return
        told = self._told.get(before.number, float("inf"))
        rightly = ({before.number} if told <= work.at else set()) | ({before.owes} if told >= work.at else set())
        demand(work.owes in rightly, "rests-are-said-once", lambda: f"{work} owes one of {rightly}, told at {told}")


def _before(work: Work, base: Content) -> Work | None:
    """The newest contribution of the same process in ``base``, as far back as its values go."""
    value: Content | None = base
    while value is not None:
        for other in value.parts:
            if (other.session, other.life[1]) == (work.session, work.life[1]):
                return other
        value = value.base
    return None
