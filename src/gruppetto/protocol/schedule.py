"""Which fragments are due at which round (section 1; Streaming DiLoCo, section 2.2)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gruppetto.errors import SettingError
from gruppetto.protocol.units import Fragment, Round

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Every fragment once per H rounds, the P fragments spread evenly over them.

    Fragment p is due at the rounds t with (t − t_p) mod H = 0, where t_p = floor(p·H/P), or ``offsets[p]`` where these
    are told: a shard of a syncer has some of the fragments, each due when it would be for a syncer of all of them.

    >>> Schedule(num_fragments=4, sync_period=8).due(Round(8))
    (0,)
    >>> Schedule(num_fragments=4, sync_period=2).due(Round(1))
    (2, 3)
    >>> Schedule(num_fragments=2, sync_period=8, offsets=(2, 6)).due(Round(14))
    (1,)
    """

    num_fragments: int
    sync_period: int
    offsets: tuple[int, ...] = ()
    """t_p of each fragment, ascending; empty: floor(p·H/P)."""

    def __post_init__(self) -> None:
        if self.num_fragments < 1:
            raise SettingError(f"num_fragments is {self.num_fragments}", where="run.num_fragments", fix="use 1 or more")
        if self.sync_period < 1:
            raise SettingError(f"sync_period is {self.sync_period}", where="run.sync_period", fix="use 1 or more")
        ordered = all(a <= b for a, b in pairwise((0, *self.offsets, self.sync_period - 1)))
        if self.offsets and (len(self.offsets) != self.num_fragments or not ordered):
            raise SettingError(
                f"{len(self.offsets)} offsets for {self.num_fragments} fragments, of {self.offsets[:1]} and more",
                where="schedule.offsets",
                fix="name one a fragment, ascending, from 0 to sync_period - 1",
            )

    def offset(self, fragment: Fragment) -> int:
        """t_p."""
        return self.offsets[fragment] if self.offsets else fragment * self.sync_period // self.num_fragments

    def due(self, round: Round) -> tuple[Fragment, ...]:
        """The fragments due at ``round``, ascending. Empty for some rounds when H > P."""
        return _due(self.num_fragments, self.sync_period, self.offsets, round % self.sync_period)

    def next_due(self, fragment: Fragment, after: Round) -> Round:
        """The first round past ``after`` at which ``fragment`` is due.

        >>> Schedule(num_fragments=4, sync_period=8).next_due(Fragment(1), Round(2))
        10
        """
        return Round(after + 1 + (self.offset(fragment) - after - 1) % self.sync_period)

    def due_within(self, first: int, num_rounds: int) -> tuple[Fragment, ...]:
        """The fragments due at any of ``num_rounds`` rounds from ``first`` on, ascending."""
        return _due_within(self.num_fragments, self.sync_period, self.offsets, first % self.sync_period, num_rounds)


# Asked at every step of every learner, and the same for all of them.


@lru_cache(maxsize=1024)
def _due(num_fragments: int, sync_period: int, offsets: tuple[int, ...], phase: int) -> tuple[Fragment, ...]:
    if offsets:
        return tuple(map(Fragment, range(bisect_left(offsets, phase), bisect_right(offsets, phase))))
    # t_p = phase has the solutions ceil(phase·P/H) ≤ p < ceil((phase + 1)·P/H): no search over all P.
    first = -(-phase * num_fragments // sync_period)
    last = -(-(phase + 1) * num_fragments // sync_period)
    return tuple(Fragment(p) for p in range(first, last))


@lru_cache(maxsize=1024)
def _due_within(
    num_fragments: int, sync_period: int, offsets: tuple[int, ...], phase: int, num_rounds: int
) -> tuple[Fragment, ...]:
    phases = (t % sync_period for t in range(phase, phase + min(num_rounds, sync_period)))
    return tuple(sorted({p for t in phases for p in _due(num_fragments, sync_period, offsets, t)}))
