"""How often somebody may ask: so many at once, and then so many a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["FRAMES", "REQUESTS", "Allowance", "Rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """``at_once`` things at any moment, and ``per_s`` a second in the long run."""

    per_s: float
    at_once: float


REQUESTS: Mapping[str, Rate] = MappingProxyType(
    {
        "control": Rate(per_s=2.0, at_once=50.0),
        "heartbeat": Rate(per_s=50.0, at_once=200.0),
        "tensors": Rate(per_s=2000.0, at_once=20_000.0),
        "looks": Rate(per_s=50.0, at_once=500.0),
    }
)
"""Of one identity, far above what a good one asks for: a learner of 256 ranks moves its parts of 24 fragments both
ways within every round, which is some 12,000 requests; it dials again once a second at most, and has one heart."""
FRAMES = Rate(per_s=1000.0, at_once=5000.0)
"""On one control connection. Whoever says more is read more slowly."""


class Allowance:
    """A bucket of ``rate.at_once`` that fills with ``rate.per_s``; one thing takes one out.

    >>> allowance = Allowance(Rate(per_s=2.0, at_once=1.0))
    >>> [allowance.take(now) for now in (0.0, 0.0, 0.25, 0.5)]
    [0.0, 0.5, 0.25, 0.0]
    """

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate, self._left, self._at = rate, rate.at_once, 0.0

    def take(self, now: float) -> float:
        """Take one, if it is there: 0. Otherwise nothing is taken, and so many seconds are to be waited."""
        self._left = min(self._rate.at_once, self._left + max(0.0, now - self._at) * self._rate.per_s)
        self._at = max(self._at, now)
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate.per_s
