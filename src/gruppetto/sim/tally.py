"""What became of the chips' time: goodput and uptime, as one system's books (section 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Tally", "half_width", "spread"]

STUDENT_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 14: 2.14, 19: 2.09}
"""Two-sided 95 % quantiles of Student's t by degrees of freedom."""


class Tally:
    """Books on useful chip·time, and on when nobody trained.

    ``parties`` jobs are side by side; each is told when it goes and when it stops, all in order of time. At 0 nobody
    goes. Nothing beyond ``horizon_s`` counts.

    >>> tally = Tally(chips=8, parties=2, horizon_s=10.0)
    >>> tally.goes(0, 0.0); tally.goes(1, 2.0); tally.stops(0, 6.0); tally.stops(1, 9.0)
    >>> tally.trained(0.0, 6.0, chips=4); tally.trained(2.0, 9.0, chips=4)
    >>> tally.goodput, tally.uptime
    (0.65, 0.9)
    """

    def __init__(self, *, chips: int, parties: int, horizon_s: float) -> None:
        self.chips, self.horizon_s = chips, horizon_s
        self.useful_chip_s = 0.0
        self.absent_chip_s = 0.0
        """Of chips that are there for part of the time only."""
        self.stops_seen = 0
        self._going = [False] * parties
        self._busy = 0
        self._down_s, self._down_since = 0.0, 0.0

    def trained(self, began_s: float, done_s: float, *, chips: int) -> None:
        """Useful steps. Of those that reach beyond the horizon, what lies before it counts."""
        if done_s > self.horizon_s:
            began_s, done_s = min(began_s, self.horizon_s), self.horizon_s
        self.useful_chip_s += chips * (done_s - began_s)

    def goes(self, party: int, at_s: float) -> None:
        """It makes useful steps from now on."""
        if not self._going[party]:
            self._going[party] = True
            if not self._busy:
                self._down_s += min(at_s, self.horizon_s) - min(self._down_since, self.horizon_s)
            self._busy += 1

    def stops(self, party: int, at_s: float) -> None:
        """It makes no useful step until it goes again."""
        if self._going[party]:
            self._going[party] = False
            self.stops_seen += 1
            self._busy -= 1
            if not self._busy:
                self._down_since = at_s

    @property
    def goodput(self) -> float:
        """Useful chip·time / all chip·time."""
        return self.useful_chip_s / (self.chips * self.horizon_s - self.absent_chip_s)

    @property
    def uptime(self) -> float:
        """The share of time in which at least one party trains."""
        open_s = 0.0 if self._busy else self.horizon_s - min(self._down_since, self.horizon_s)
        return 1.0 - (self._down_s + open_s) / self.horizon_s


def half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of the mean, by Student's t; None of a single value.

    >>> round(half_width([0.5, 0.6, 0.7]), 3)
    0.248
    """
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    quantile = next((q for freedom, q in sorted(STUDENT_95.items(), reverse=True) if freedom <= n - 1), 12.71)
    return quantile * deviation / math.sqrt(n)


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % interval."""
    return math.fsum(values) / len(values), half_width(values)
