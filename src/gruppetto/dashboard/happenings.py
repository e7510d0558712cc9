"""What happened in a run, in plain words, each with its moment; bounded."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

__all__ = ["KEPT", "Happening", "Happenings"]

KEPT = 4000
"""Newest ones that are kept. How many there were of each kind is counted for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """``kind``: joined, back, away, left, died, alarm, refused, restart, checkpoint, recovered or round."""

    t: float
    kind: str
    who: str
    text: str


class Happenings:
    """What was said, oldest first. An alarm or a death is never crowded out by comings and goings."""

    GRAVE = frozenset({"died", "alarm", "restart", "checkpoint"})

    def __init__(self, most: int = KEPT) -> None:
        self._grave: deque[Happening] = deque(maxlen=most // 2)
        self._plain: deque[Happening] = deque(maxlen=most // 2)
        self.counts: Counter[str] = Counter()

    def say(self, t: float, kind: str, who: str, text: str) -> None:
        self.counts[kind] += 1
        (self._grave if kind in self.GRAVE else self._plain).append(Happening(t=t, kind=kind, who=who, text=text))

    def within(self, start: float, end: float) -> list[Happening]:
        """Those of [start, end], in order."""
        both = [h for each in (self._grave, self._plain) for h in each if start <= h.t <= end]
        return sorted(both, key=lambda h: h.t)

    @property
    def forgotten(self) -> int:
        """How many are not here any more."""
        return sum(self.counts.values()) - len(self._grave) - len(self._plain)
