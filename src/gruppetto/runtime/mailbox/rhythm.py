"""How often to look whether something has come, where nobody can be woken and every look costs money.

A look comes after a quarter of the time that has passed since the last news, at least ``poll_s`` and at most
``rest_s``: so waiting never makes anything a quarter slower, and who has nothing to do is looked at rarely.
"""

from __future__ import annotations

import math

__all__ = ["GROWTH", "REST", "Rhythm", "looks_per_event"]

GROWTH = 0.25
REST = 10.0
"""Times ``poll_s``: the longest pause."""


class Rhythm:
    """Pauses between two looks.

    >>> rhythm = Rhythm(poll_s=0.2, rest_s=1.0)
    >>> [round(rhythm.pause_s(), 2) for _ in range(9)]
    [0.2, 0.25, 0.31, 0.39, 0.49, 0.61, 0.76, 0.95, 1.0]
    >>> rhythm.news()
    >>> rhythm.pause_s()
    0.2
    """

    def __init__(self, poll_s: float, rest_s: float) -> None:
        self.poll_s, self.rest_s = poll_s, max(poll_s, rest_s)
        self._next_s = poll_s

    def news(self) -> None:
        """Something has happened, or is about to."""
        self._next_s = self.poll_s

    def pause_s(self) -> float:
        """From this look, which has brought nothing, to the next."""
        pause_s = self._next_s
        self._next_s = min(self.rest_s, pause_s * (1 + GROWTH))
        return pause_s


def looks_per_event(event_s: float, poll_s: float, rest_s: float) -> float:
    """How many looks there are, on the average, from one piece of news to the next ``event_s`` later.

    >>> round(looks_per_event(1.0, 0.25, 2.5), 1), round(looks_per_event(60.0, 0.25, 2.5), 1)
    (3.1, 30.7)
    """
    growing_s = (rest_s - poll_s) / GROWTH
    growing = math.log1p(GROWTH * min(event_s, growing_s) / poll_s) / math.log1p(GROWTH)
    return growing + max(0.0, event_s - growing_s) / rest_s
