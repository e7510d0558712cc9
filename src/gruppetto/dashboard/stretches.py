"""Which state somebody was in, when, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Stretches"]


class Stretches:
    """States one after the other. Of more than ``most`` the shortest are forgotten, as part of the state before.

    >>> lane = Stretches()
    >>> for t, state in [(1.0, "joining"), (2.0, "live"), (2.0, "live"), (5.0, "away")]:
    ...     lane.enter(t, state)
    >>> list(lane.within(1.5, 9.0))
    [(1.5, 2.0, 'joining'), (2.0, 5.0, 'live'), (5.0, 9.0, 'away')]
    >>> lane.state, lane.since
    ('away', 5.0)
    """

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._begins: list[tuple[float, str]] = []

    @property
    def state(self) -> str:
        """The present one; "" before the first."""
        return self._begins[-1][1] if self._begins else ""

    @property
    def since(self) -> float:
        return self._begins[-1][0] if self._begins else 0.0

    def enter(self, t: float, state: str) -> None:
        """A state begins; one that goes on changes nothing."""
        if state == self.state:
            return
        if self._begins and t <= self._begins[-1][0]:
            self._begins.pop()
            if self.state == state:
                return
        self._begins.append((t, state))
        if len(self._begins) > 2 * self._most:
            self._forget()

    def within(self, start: float, end: float) -> Iterator[tuple[float, float, str]]:
        """(from, to, state) of each that lies in [start, end]."""
        for i, (begins, state) in enumerate(self._begins):
            ends = self._begins[i + 1][0] if i + 1 < len(self._begins) else end
            if begins < end and ends > start:
                yield max(begins, start), min(ends, end), state

    def _forget(self) -> None:
        *past, present = self._begins
        lengths = [later[0] - begin[0] for begin, later in zip(past, self._begins[1:], strict=True)]
        enough = sorted(lengths, reverse=True)[self._most - 2]
        kept: list[tuple[float, str]] = []
        for i, begin in enumerate(past):
            long = i == 0 or (lengths[i] >= enough and len(kept) < self._most - 1)
            if long and (not kept or kept[-1][1] != begin[1]):
                kept.append(begin)
        if kept and kept[-1][1] == present[1]:
            kept.pop()
        self._begins = [*kept, present]
