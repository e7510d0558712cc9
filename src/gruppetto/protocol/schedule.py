"""Which fragments are due at which round (section 1; Streaming DiLoCo, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gruppetto.errors import SettingError
from gruppetto.protocol.units import Fragment, Round

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Every fragment once per H rounds, the P fragments spread evenly over them.

    Fragment p is due at the rounds t with (t − t_p) mod H = 0, where t_p = floor(p·H/P).

    >>> Schedule(num_fragments=4, sync_period=8).due(Round(8))
    (0,)
    >>> Schedule(num_fragments=4, sync_period=2).due(Round(1))
    (2, 3)
    """

    num_fragments: int
    sync_period: int

    def __post_init__(self) -> None:
        if self.num_fragments < 1:
            raise SettingError(f"num_fragments is {self.num_fragments}", where="run.num_fragments", fix="use 1 or more")
        if self.sync_period < 1:
            raise SettingError(f"sync_period is {self.sync_period}", where="run.sync_period", fix="use 1 or more")

    def offset(self, fragment: Fragment) -> int:
        """t_p = floor(p·H/P)."""
        return fragment * self.sync_period // self.num_fragments

    def due(self, round: Round) -> tuple[Fragment, ...]:
        """The fragments due at ``round``, ascending. Empty for some rounds when H > P."""
        return _due(self.num_fragments, self.sync_period, round % self.sync_period)

    def next_due(self, fragment: Fragment, after: Round) -> Round:
        """The first round past ``after`` at which ``fragment`` is due.

        >>> Schedule(num_fragments=4, sync_period=8).next_due(Fragment(1), Round(2))
        10
        """
        return Round(after + 1 + (self.offset(fragment) - after - 1) % self.sync_period)

    def due_within(self, first: Round, num_rounds: int) -> tuple[Fragment, ...]:
        """The fragments due at any of ``num_rounds`` rounds from ``first`` on, ascending."""
        return _due_within(self.num_fragments, self.sync_period, first % self.sync_period, num_rounds)


# Asked at every step of every learner, and the same for all of them.


@lru_cache(maxsize=1024)
def _due(num_fragments: int, sync_period: int, phase: int) -> tuple[Fragment, ...]:
    # t_p = phase has the solutions ceil(phase·P/H) ≤ p < ceil((phase + 1)·P/H): no search over all P.
    first = -(-phase * num_fragments // sync_period)
    last = -(-(phase + 1) * num_fragments // sync_period)
    return tuple(Fragment(p) for p in range(first, last))


@lru_cache(maxsize=1024)
def _due_within(num_fragments: int, sync_period: int, phase: int, num_rounds: int) -> tuple[Fragment, ...]:
    phases = (t % sync_period for t in range(phase, phase + min(num_rounds, sync_period)))
    return tuple(sorted({p for t in phases for p in _due(num_fragments, sync_period, t)}))
