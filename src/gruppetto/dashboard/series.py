"""Numbers over time in bounded memory: counts, extremes and sums are kept exactly, moments only roughly.

>>> series = Series(slots=4, width_s=1.0)
>>> for t, value in [(0.5, 1.0), (1.5, 9.0), (1.75, 2.0), (6.5, 4.0)]:
...     series.add(t, value)
>>> series.width_s
2.0
>>> series.window(0.0, 8.0, most=4).low.tolist()
[1.0, 4.0]
>>> series.window(0.0, 8.0, most=1).high.tolist()
[9.0]
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FINEST_S", "Series", "Window"]

FINEST_S = 1 / 64
"""A power of two, so that slots that were joined begin and end where finer ones did."""
LONGEST_S = 1e9
"""Thirty years. What is later is put there: a trace may be damaged, memory stays bounded."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Slots of a stretch of time that hold anything, in order; one array entry each."""

    width_s: float
    start: Floats
    """When the slot begins."""
    count: Floats
    low: Floats
    high: Floats
    total: Floats


class Series:
    """At most ``slots`` slots of equal width from time 0 on; whenever time outgrows them two become one."""

    def __init__(self, *, slots: int = 1024, width_s: float = FINEST_S) -> None:
        assert slots >= 2 and slots % 2 == 0
        self.slots, self.width_s = slots, width_s
        self.last: float | None = None
        """The newest value."""
        self._end_s = 0.0
        """Up to there slots have been made."""
        self._count, self._total = array("d"), array("d")
        self._low, self._high = array("d"), array("d")

    def add(self, t: float, value: float) -> None:
        """A value at time ``t``, in seconds from 0 on. What is no number is passed over."""
        if not math.isfinite(value):
            return
        i = int(t / self.width_s) if 0.0 <= t < self._end_s else self._slot(t)
        self._count[i] += 1
        self._total[i] += value
        if value < self._low[i]:
            self._low[i] = value
        if value > self._high[i]:
            self._high[i] = value
        self.last = value

    def spread(self, start: float, end: float) -> None:
        """The seconds from ``start`` to ``end``, each to the slot in which it lies, as one value of the last one."""
        start, end = max(0.0, start), min(end, LONGEST_S)
        if not start < end:
            return
        self.add(end, 0.0)
        first, last = int(start / self.width_s), len(self._total) - 1
        last = min(last, int(end / self.width_s))
        for i in range(first, last + 1):
            a, b = i * self.width_s, (i + 1) * self.width_s
            self._total[i] += max(0.0, min(b, end) - max(a, start))

    def window(self, start: float, end: float, *, most: int) -> Window:
        """The slots that touch [start, end), joined until there are at most ``most`` and one more."""
        start, end = max(0.0, start), min(end, LONGEST_S)
        length = max(end - start, self.width_s)
        by = 1
        while length / (self.width_s * by) > most:
            by *= 2
        width_s = self.width_s * by
        first = max(0, int(start / width_s)) * by
        last = min(len(self._count), math.ceil(end / width_s) * by)
        count, low, high, total = (
            _joined(np.frombuffer(values)[first:last] if len(values) else np.empty(0), by, how)
            for values, how in (
                (self._count, np.add),
                (self._low, np.minimum),
                (self._high, np.maximum),
                (self._total, np.add),
            )
        )
        held = np.flatnonzero((count > 0) | (total > 0))
        return Window(
            width_s=width_s,
            start=np.asarray((first + held * by) * self.width_s, dtype=np.float64),
            count=count[held],
            low=low[held],
            high=high[held],
            total=total[held],
        )

    def _slot(self, t: float) -> int:
        t = min(max(0.0, t), LONGEST_S) if t == t else 0.0
        while t >= self.slots * self.width_s:
            self._coarsen()
        i = int(t / self.width_s)
        missing = i + 1 - len(self._count)
        if missing > 0:
            self._count.extend([0.0] * missing)
            self._total.extend([0.0] * missing)
            self._low.extend([math.inf] * missing)
            self._high.extend([-math.inf] * missing)
        self._end_s = len(self._count) * self.width_s
        return i

    def _coarsen(self) -> None:
        self.width_s *= 2
        for name, how in (("_count", np.add), ("_total", np.add), ("_low", np.minimum), ("_high", np.maximum)):
            values = np.array(getattr(self, name))
            setattr(self, name, array("d", _joined(values, 2, how).tobytes()))


def _joined(values: Floats, by: int, how: Any) -> Floats:
    """Groups of ``by`` as one; the last group may be shorter."""
    if by == 1 or not len(values):
        return values.copy()
    joined: Floats = how.reduceat(values, np.arange(0, len(values), by))
    return joined
