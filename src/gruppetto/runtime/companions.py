"""The other ranks of a learner that begins, as rank 0 sees them: they fetch their parts of the same state.

They hear of it by an order, and say at every boundary how far they are. One that fails makes all of them go on to the
next source.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from gruppetto.errors import ConnectionLost
from gruppetto.protocol.messages import Donor
from gruppetto.runtime.donation import Manifest, encode_manifest
from gruppetto.runtime.orders import Fetch, RankOrder

__all__ = ["MAX_RANKS", "Companions", "Errand", "lacking"]

LOOK_S = 0.02
"""Between two looks at what the ranks have said."""
MAX_RANKS = 1 << 20


class Companions:
    """All other ranks. ``order`` gives them an order, with the lock ``news`` held."""

    def __init__(self, order: Callable[[RankOrder], None], news: threading.Condition) -> None:
        self._order, self._news = order, news
        self._given = 0
        """Errands so far: an attempt at one donor each."""
        self._fetched = self._failed = 0

    def heard(self, fetched: int, lacks: int) -> None:
        """At a boundary: the last errand that all have done, and by :func:`lacking` the last that one could not do."""
        self._fetched, self._failed = fetched, lacks

    def give(self, donor: Donor, manifest: Manifest) -> int:
        """Send them for their parts; the number of the errand."""
        with self._news:
            number = self.next()
            self._order(Fetch(number=number, donor=donor, manifest=encode_manifest(manifest)))
            return number

    def next(self) -> int:
        """The number of an errand that they are sent on with another order; the lock is held."""
        self._given += 1
        return self._given

    def verdict(self, errand: int) -> str | None:
        """ "" when all have done it; why not, if one could not; None as long as nobody knows."""
        number, rank = divmod(-self._failed, MAX_RANKS)
        if number == errand:
            return f"rank {rank} has not got its part; its own output says why"
        return "" if self._fetched >= errand else None

    async def done(self, errand: int) -> None:
        """Raises :class:`ConnectionLost` when a rank has not got its part. Each comes to an end of its own, or goes,
        and then all ranks end."""
        while (verdict := self.verdict(errand)) is None:
            await asyncio.sleep(LOOK_S)
        if verdict:
            raise ConnectionLost(verdict)


class Errand:
    """One attempt: what a visit has to do with the others."""

    def __init__(self, companions: Companions, donor: Donor) -> None:
        self._companions, self._donor = companions, donor
        self._told, self._number = asyncio.Event(), 0

    def fetch_too(self, manifest: Manifest) -> None:
        self._number = self._companions.give(self._donor, manifest)
        self._told.set()

    async def all_have(self) -> None:
        await self._told.wait()
        await self._companions.done(self._number)


def lacking(errand: int, rank: int) -> int:
    """That a rank could not do an errand, as a number of which the lowest of all ranks tells the last such errand."""
    return -(errand * MAX_RANKS + rank)
