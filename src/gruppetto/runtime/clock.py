"""The only home of clocks. Everybody else is told the time.

>>> clock = ManualClock()
>>> clock.advance(2.5)
>>> clock.now()
2.5
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "MonotonicClock", "wall_time_s"]


class Clock(Protocol):
    """Seconds since the clock was made. Never goes back."""

    def now(self) -> float: ...


class MonotonicClock:
    """Real time, whatever happens to the date of the machine."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._start


class ManualClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now += seconds


def wall_time_s() -> float:
    """Seconds since 1970, for people to read. Nothing is decided by it."""
    return time.time()
