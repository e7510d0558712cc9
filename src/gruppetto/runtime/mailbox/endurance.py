"""Asking a store again: what is away for a few seconds costs nothing but time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gruppetto.errors import AddressError, ConnectionLost

__all__ = ["Endurance"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Between two tries; doubled each time."""
QUIET_S = 60.0
"""From one complaint to the next: a store may refuse one thing for ever and answer all others."""

Got = TypeVar("Got")


class Endurance:
    """Says in the log that a store is away, and that it is back, once in a while. For as many requests as there are."""

    def __init__(self, log: logging.Logger, *, patience_s: float | None = None) -> None:
        """``patience_s``: for how long one request is tried again; None: for ever."""
        self._log, self._patience_s = log, patience_s
        self._quiet_until, self._told = float("-inf"), False
        self.away = ""
        """What is the matter, in words; "" while the store answers."""

    async def tried(self, ask: Callable[[], Awaitable[Got]]) -> Got:
        """What comes of ``ask``, which may be called several times. Raises :class:`ConnectionLost` or
        :class:`AddressError` when patience is at an end."""
        loop = asyncio.get_running_loop()
        began, pause_s = loop.time(), FIRST_PAUSE_S
        while True:
            try:
                got = await ask()
            except (ConnectionLost, AddressError) as wrong:
                self.missed(wrong)
                if self._patience_s is not None and loop.time() + pause_s > began + self._patience_s:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                self.answered()
                return got

    def missed(self, wrong: ConnectionLost | AddressError) -> None:
        """A request has failed."""
        now = asyncio.get_running_loop().time()
        if not self.away and now >= self._quiet_until:
            self._log.warning("%s; asked again until it answers", wrong)
            self._quiet_until, self._told = now + QUIET_S, True
        self.away = str(wrong)

    def answered(self) -> None:
        """A request has been answered."""
        if self.away and self._told:
            self._log.info("the store answers again")
            self._told = False
        self.away = ""
