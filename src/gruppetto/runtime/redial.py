"""How long to wait between two connections to the syncer."""

from __future__ import annotations

import random

__all__ = ["FIRST_PAUSE_S", "LONGEST_PAUSE_S", "STEADY_S", "Redial"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between two attempts to connect: doubled each time, with jitter, so that a crowd does not come back as one."""
STEADY_S = 5.0
"""A connection that lasted so long was no part of the trouble. A Welcome alone is no such sign: what breaks the
connection may come right after it, every time."""


class Redial:
    """Pauses that grow until a connection lasts.

    >>> redial = Redial(random.Random(0))
    >>> [0.5 <= redial.pause_s(lasted_s=0.2) / due_s < 1.0 for due_s in (0.1, 0.2, 0.4)]
    [True, True, True]
    >>> redial.pause_s(lasted_s=60.0) <= FIRST_PAUSE_S
    True
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = FIRST_PAUSE_S
        self.again = False
        """The connection before the last did not last either."""

    def pause_s(self, *, lasted_s: float) -> float:
        """The pause after an attempt, or a connection, of ``lasted_s``."""
        if lasted_s >= STEADY_S:
            self._next_s = FIRST_PAUSE_S
        self.again = self._next_s > FIRST_PAUSE_S
        pause_s = self._next_s * self._rng.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, LONGEST_PAUSE_S)
        return pause_s
