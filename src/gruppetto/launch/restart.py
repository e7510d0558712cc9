"""Whether and when a process that has died is started again. Pure: the time is an argument.

The first time after half a second, then after twice as long each time, half a minute at most; a life of 15 seconds
makes up for all deaths before it. A process that says it is the user's mistake will say so again, and one that dies
again and again without ever having taken part has a reason to: neither is started any more.

>>> ben = Restarts(most=5)
>>> ben.died(10.0, lived_s=9.0, code=-9)
>>> ben.due_at, ben.is_due(10.4), ben.is_due(10.5)
(10.5, False, True)
>>> ben.started()
>>> ben.died(11.0, lived_s=0.5, code=1)
>>> ben.due_at, ben.count
(12.0, 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gruppetto.errors import UserError

__all__ = ["FIRST_PAUSE_S", "FORGIVEN_AFTER_S", "LONGEST_PAUSE_S", "Restarts"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
FORGIVEN_AFTER_S = 15.0


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The deaths of one process. ``most``: so many in a row, none of them in a life that took part, are enough.

    ``most`` = 0 starts nothing again.
    """

    most: int
    count: int = 0
    """How often it was started again."""
    due_at: float | None = None
    """When it is started again; None while it lives, and when it is not."""
    given_up: str = ""
    """Why it is not started again, in words."""
    _took_part: bool = False
    _in_vain: int = 0
    _pause_s: float = field(default=FIRST_PAUSE_S)

    def took_part(self) -> None:
        """It was of use once: whatever kills it, it is not how it was started."""
        self._took_part, self._in_vain = True, 0

    def died(self, now: float, *, lived_s: float, code: int, blameless: bool = False) -> None:
        """It has ended, after so many seconds, with this exit code (below 0: by a signal), and was not meant to.

        ``blameless``: with the machine it ran on, which says nothing about how it was started.
        """
        self.due_at = None
        if lived_s >= FORGIVEN_AFTER_S:
            self._pause_s, self._in_vain = FIRST_PAUSE_S, 0
        self._in_vain += not (self._took_part or blameless)
        if self.most == 0:
            self.given_up = "nothing is started again"
        elif code == UserError.exit_code:
            self.given_up = "it says what has to be mended"
        elif self._in_vain >= self.most:
            self.given_up = f"it died {self._in_vain} times without having taken part"
        else:
            self.due_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def is_due(self, now: float) -> bool:
        return self.due_at is not None and now >= self.due_at

    def started(self) -> None:
        """It lives again."""
        self.count += 1
        self.due_at = None
