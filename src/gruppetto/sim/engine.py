"""A virtual clock and a heap of what will happen."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

__all__ = ["Engine"]


class Engine:
    """Runs callbacks in order of virtual time; those of one instant in the order in which they were planned.

    >>> engine, seen = Engine(), []
    >>> engine.after(2.0, lambda: seen.append("late"))
    >>> engine.after(1.0, lambda: seen.append("early"))
    >>> engine.run(until=10.0)
    2
    >>> seen, engine.now
    (['early', 'late'], 10.0)
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Plan ``do`` for the time ``when``, in seconds; a time that has passed means now."""
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), do))

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.at(self.now + delay_s, do)

    def stop(self) -> None:
        """End the present :meth:`run` after the present callback."""
        self._stopped = True

    def run(self, until: float) -> int:
        """Run everything up to and including the time ``until``; return how many callbacks that were."""
        done, self._stopped = 0, False
        while self._heap and self._heap[0][0] <= until and not self._stopped:
            self.now, _, do = heapq.heappop(self._heap)
            do()
            done += 1
        if not self._stopped:
            self.now = max(self.now, until)
        return done
