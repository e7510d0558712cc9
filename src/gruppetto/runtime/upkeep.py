"""What a syncer's process does by the clock: its core's time, its lease, a look around."""

from __future__ import annotations

import asyncio
import logging

from gruppetto.errors import SteppedDown
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.service import SyncerService

__all__ = ["Timer", "look_around", "renew_lease"]

LOOK_S = 10.0
"""From one look at disk, clocks and losses to the next."""
SHORTEST_WAIT_S = 0.001
"""A timer may fire a little early; it is not set again for less than this."""


class Timer:
    """Calls ``tick`` when the service wants it."""

    def __init__(self, service: SyncerService, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._service, self._clock, self._loop = service, clock, loop
        self._handle: asyncio.TimerHandle | None = None

    def set(self) -> None:
        self.stop()
        if self._service.wake_at is not None:
            wait_s = max(SHORTEST_WAIT_S, self._service.wake_at - self._clock.now())
            self._handle = self._loop.call_later(wait_s, self._service.tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


async def renew_lease(service: SyncerService, every_s: float) -> None:
    """As long as the event loop turns and the state can be written: whoever cannot do both is of no use to anybody."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            await loop.run_in_executor(None, service.beat)
        except SteppedDown as error:
            service.step_down(error)
            return
        except OSError as wrong:
            service.complaints.note(("lease",), f"the lease could not be renewed: {wrong}", logging.WARNING)
        await asyncio.sleep(every_s)


async def look_around(service: SyncerService) -> None:
    """Now and then, for what no message tells."""
    while True:
        await asyncio.sleep(LOOK_S)
        service.look_around()
