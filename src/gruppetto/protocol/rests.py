"""What an encoding leaves unsaid, and when it is to be said (error feedback).

A coarse encoding says q of what was meant, v, and leaves a rest, v − q. The next contribution of the fragment says it,
v = Δ + rest, **if and only if q has counted**; otherwise nothing of v has, and what was left before is left still. So,
over all contributions of a fragment that were merged, at any time::

    Σ q + rest = Σ Δ

A contribution has counted when it was taken into its round and the value that the round made of the fragment is
published. The two are heard on different connections; whichever comes last decides.

==================================  ===================================================================================
merged                              its rest is kept in place of the one before
merged, but clipped                 the same: what the gate takes off is taken off on purpose, and owed to nobody
rejected, late, superseded, lost    never taken: the rest of before stays
taken, and the merge is not finite  no value is published under this round: the rest of before stays
taken by a syncer that dies         the same
the learner begins a new life       every rest is dropped, like the work since its bases: the account is closed
==================================  ===================================================================================

In two cases it may have counted all the same: when the reply to a contribution is lost with its connection, and when a
syncer dies after the commit and before the announcement. Nobody can tell, since a run that goes on from an earlier
moment may have made the same round anew. Then the rest of before is said twice and the new one never: the error of one
encoding, once, which does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from gruppetto.protocol.actions import KeepRest
from gruppetto.protocol.events import Taken
from gruppetto.protocol.units import Epoch, Fragment, Round, Version

__all__ = ["Rests"]


class Rests:
    """Contributions that were taken, and whose round is not known to be published.

    >>> rests = Rests()
    >>> rests.took(Taken(epoch=Epoch(1), round=Round(7), fragment=Fragment(0), tokens=64))
    >>> rests.settle(Fragment(0), newest=Version(3), closed=Round(6), epoch=Epoch(1)) is None
    True
    >>> rests.settle(Fragment(0), newest=Version(7), closed=Round(7), epoch=Epoch(1))
    KeepRest(fragment=0, round=7, tokens=64)
    """

    def __init__(self) -> None:
        self._taken: dict[Fragment, Taken] = {}

    def took(self, taken: Taken) -> None:
        """The newest counts: work on a base that has been merged already would not have been taken once more."""
        self._taken[taken.fragment] = taken

    @property
    def empty(self) -> bool:
        """There is nothing to be settled, as at most events."""
        return not self._taken

    def open(self) -> Sequence[Fragment]:
        """The fragments whose contributions are still to be settled."""
        return sorted(self._taken)

    def settle(self, fragment: Fragment, *, newest: Version, closed: Round, epoch: Epoch) -> KeepRest | None:
        """What to keep, given the newest version that is published and the newest round that has closed."""
        taken = self._taken.get(fragment)
        if taken is None:
            return None
        # In another life of the syncer a round of this number may have been made anew.
        same_life = epoch == taken.epoch
        counted = same_life and newest >= taken.round
        if counted or closed >= taken.round or not same_life:
            del self._taken[fragment]
        return KeepRest(fragment=fragment, round=taken.round, tokens=taken.tokens) if counted else None

    def forget(self) -> None:
        """A new life begins."""
        self._taken.clear()
