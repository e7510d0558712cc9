"""A learner of a run that several syncers serve: beside the first one's core and client it has one for each other.

Each shard has its own rounds over its own fragments, so their cores know nothing of each other. Every step is told to
all; what has arrived from several is applied at the same boundary. The first shard's core alone leases the data slot.
"""

from __future__ import annotations

from collections.abc import Callable

from gruppetto.attach.hands import Hands
from gruppetto.numerics.deal import check_whole

__all__ = ["SEED_PATIENCE_S", "Meeting"]

SEED_PATIENCE_S = 15.0
"""After so long without weights a shard may begin with those of any learner: whoever gave the others theirs is gone."""


class Meeting:
    """Makes the hands for the other shards, as soon as it is known which there are; looks that all fit together.

    ``make(number)`` gives hands for one shard, whose client has not been started.
    """

    def __init__(self, first: Hands, make: Callable[[int], Hands]) -> None:
        self._first, self._make = first, make
        self._checked = False

    def __call__(self) -> None:
        """With the lock held. Raises :class:`LayoutError` if the shards do not make up the model."""
        first = self._first
        shards = first.client.shards
        if shards is None or self._checked:
            return
        if not first.beside:
            first.beside = tuple(self._make(number) for number in range(2, shards.of + 1))
            for each in first.beside:
                each.client.start()
        parts = {f"shard {each.client.shard}": each.holdings.model.fragmentation for each in first.everybody}
        known = {who: part for who, part in parts.items() if part is not None}
        if len(known) == shards.of:
            check_whole(first.holdings.model.layout, known)
            self._checked = True
