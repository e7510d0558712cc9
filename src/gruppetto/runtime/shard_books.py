"""What a learner knows of where the shards of its run are: one map, and a book of addresses for each shard."""

from __future__ import annotations

import asyncio

from gruppetto.errors import GruppettoError
from gruppetto.numerics.deal import Shard
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import AddressBook
from gruppetto.runtime.line import Line
from gruppetto.runtime.shard_map import ShardMap

__all__ = ["ShardBook", "Shards"]

LOOK_S = 2.0
"""For one shard to say where the others are."""


class Shards:
    """The newest map that any shard has given; shared by all threads of a learner, replaced as a whole.

    ``book``: how the learner was told of the run. If that leads to the first shard, it goes on doing so: its standbys
    may be in it, or it says where the first shard listens now.
    """

    def __init__(self, told: ShardMap, book: AddressBook) -> None:
        self.run_id, self.of = told.run_id, told.shards
        self._book = book
        self._addresses = _parsed(told)
        self._leads_to_the_first = self._addresses[1] in book.addresses()

    def shard(self, number: int) -> Shard:
        return Shard(number=number, of=self.of)

    def addresses(self, number: int) -> tuple[SyncerAddress, ...]:
        """One or more, to be tried in turn."""
        told = self._book.addresses() if number == 1 and self._leads_to_the_first else ()
        return tuple(dict.fromkeys((*told, self._addresses[number])))

    async def look(self, http: Line, number: int) -> None:
        """A shard that has moved is found at those that have not. What nobody knows better stays."""
        others = [self._addresses[k] for k in sorted(self._addresses) if k != number]
        for address in dict.fromkeys((*others, *self._book.addresses())):
            try:
                async with asyncio.timeout(LOOK_S):
                    told = await http.directory(address)
            except (GruppettoError, TimeoutError):
                continue
            if told is not None and (told.run_id, told.shards) == (self.run_id, self.of):
                self._addresses = {**self._addresses, **_parsed(told)}
                return


class ShardBook:
    """The book of one shard (:class:`~gruppetto.runtime.address_book.AddressBook`)."""

    def __init__(self, shards: Shards, number: int) -> None:
        self._shards, self._number = shards, number

    def addresses(self) -> tuple[SyncerAddress, ...]:
        return self._shards.addresses(self._number)


def _parsed(told: ShardMap) -> dict[int, SyncerAddress]:
    return {number: SyncerAddress.parse(url) for number, url in told.addresses.items()}
