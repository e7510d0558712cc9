"""A virtual clock, and what will happen when."""

from __future__ import annotations

import heapq
import math
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
        self._moments: list[float] = []
        """A heap of them, each once: messages to many mostly arrive together."""
        self._planned: dict[float, list[Callable[[], None]]] = {}
        self._until = 0.0
        """How far the present run goes; it has been stopped if that lies behind."""

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Plan ``do`` for the time ``when``, in seconds; a time that has passed means now."""
        if when < self.now:
            when = self.now
        planned = self._planned.get(when)
        if planned is not None:
            planned.append(do)
        else:
            self._planned[when] = [do]
            heapq.heappush(self._moments, when)

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self.at(self.now + delay_s, do)

    def stop(self) -> None:
        """End the present :meth:`run` after the present callback."""
        self._until = -math.inf

    def run(self, until: float) -> int:
        """Run everything up to and including the time ``until``; return how many callbacks that were."""
        done, self._until, moments = 0, until, self._moments
        while moments and moments[0] <= self._until:
            self.now = moments[0]
            planned, here = self._planned[self.now], 0
            for do in planned:  # and whatever is planned meanwhile for this very moment
                do()
                here += 1
                if self._until < self.now:
                    break
            done += here
            if here < len(planned):
                del planned[:here]
            else:
                del self._planned[heapq.heappop(moments)]
        if self._until == until:
            self.now = max(self.now, until)
        return done
