"""A syncer in waiting, on the same state directory: it follows the commits and takes over when the syncer is gone.

Gone is who has let go of his lock (his process has ended, however it ended), at once; or who has not renewed his lease
for ``lease_s`` of *our* clock: he hangs, or his host is gone and the lock with it. In the second case he may live, and
wake up; :mod:`gruppetto.runtime.authority` says why that does no harm.

A run without weights is not taken over from somebody who may live, and a run that nobody has begun is not begun.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gruppetto.numerics.downlink import Kept
from gruppetto.numerics.kernels import Float32
from gruppetto.runtime.authority import Authority, Lease
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.commits import COMMITS, Commit, CommitName, DamagedError, Place
from gruppetto.runtime.store import Values

__all__ = ["Standby", "Takeover"]

_log = logging.getLogger("gruppetto.standby")

POLL_S = 0.1
"""Between two looks at the directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """How the authority is to be taken. ``over``: past a lock that is still held; ``known``: values read meanwhile."""

    over: bool
    known: Values
    why: str


class Standby:
    """Watches one state directory. ``clock`` is all that ``lease_s`` is measured by."""

    def __init__(self, path: Path, *, clock: Clock, lease_s: float) -> None:
        self.path = path
        self._clock, self._lease_s = clock, lease_s
        self._known: dict[Place, tuple[Float32, Kept]] = {}
        self._followed: CommitName | None = None
        self._seen: tuple[int, Lease | None] | None = None
        self._seen_at = 0.0

    async def wait(self, stopping: asyncio.Event) -> Takeover | None:
        """Until the syncer is gone; None if it is us who are to stop."""
        loop = asyncio.get_running_loop()
        while not stopping.is_set():
            found = await loop.run_in_executor(None, self.look)
            if found is not None:
                return found
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), POLL_S)
        return None

    def look(self) -> Takeover | None:
        """One look: keep up with the commits, and say whether and how to take over now."""
        seat = Authority(self.path)
        try:
            self._follow()
            return self._judge(seat)
        except OSError as wrong:  # the directory is away; so is the syncer's, perhaps
            _log.debug("%s: %s", self.path, wrong)
            return None
        finally:
            seat.close()

    def _judge(self, seat: Authority) -> Takeover | None:
        epoch = seat.newest()
        if not epoch:
            return None  # nobody has begun
        if seat.take_lock():
            return Takeover(over=False, known=dict(self._known), why=f"the syncer of epoch {epoch} has ended")
        now, seen = self._clock.now(), (epoch, seat.lease(epoch))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if now < self._seen_at + self._lease_s or self._followed is None:
            return None
        why = f"the syncer of epoch {epoch} has not renewed its lease for {self._lease_s:g} s"
        return Takeover(over=True, known=dict(self._known), why=why)

    def begin_again(self) -> None:
        """Somebody else was quicker: there is a new lease to be watched."""
        self._seen = None

    def _follow(self) -> None:
        """Read the values that the newest commit brings, so that they need not be read when time counts."""
        directory = self.path / COMMITS
        try:
            names = [name for path in directory.iterdir() if (name := CommitName.parse(path.name)) is not None]
        except FileNotFoundError:
            return
        newest = max(names, default=None)
        if newest is None or newest == self._followed:
            return
        with suppress(DamagedError, NotImplementedError):  # whoever takes over looks for something better
            commit = Commit.read(directory / newest.file)
            places = [of_fragment[0] for of_fragment in commit.places]
            self._known = {place: self._known.get(place) or place.read(directory) for place in places}
            self._followed = newest if commit.state is not None else None
