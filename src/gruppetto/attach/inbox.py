"""What has arrived at one rank of a learner, until all ranks have their part of the same version.

Its vectors come from the network whenever they come. At a boundary each rank reports what it has; where all have the
same, rank 0 says that it is to be kept, and only then the core hears of it.
"""

from __future__ import annotations

from gruppetto.attach.sharding import FlatModel
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.leases import Lease

__all__ = ["ANY", "NONE", "Inbox"]

NONE = -2
"""Reported by a rank that has nothing new of a fragment."""
ANY = 1 << 62
"""Reported by a rank that has no part of a fragment: whatever the others have is fine."""


class Inbox:
    """The newest version of each fragment. Called with the lock held."""

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._came: dict[Fragment, tuple[Version, Lease]] = {}
        self._reported: dict[Fragment, tuple[Version, Lease]] = {}

    def __len__(self) -> int:
        return len(self._came.keys() | self._reported.keys())

    def put(self, fragment: Fragment, version: Version, values: Lease) -> None:
        """From the network. Takes over the hold."""
        _put(self._came, fragment, version, values)

    def report(self) -> list[int]:
        """The version of each fragment that could be kept now; what comes meanwhile changes nothing about it."""
        for fragment, (version, values) in self._came.items():
            _put(self._reported, fragment, version, values)
        self._came.clear()
        return [
            ANY if not self._model.numel(p) else self._reported[Fragment(p)][0] if p in self._reported else NONE
            for p in range(self._model.num_fragments)
        ]

    def take(self, fragment: Fragment, version: Version) -> Lease | None:
        """What was reported of this version; None where this rank has no part. The hold goes to the caller."""
        if not self._model.numel(fragment):
            _, values = self._reported.pop(fragment, (version, None))
            return values
        reported, values = self._reported.pop(fragment)
        assert reported == version, "rank 0 speaks of what was reported"
        return values


def _put(where: dict[Fragment, tuple[Version, Lease]], fragment: Fragment, version: Version, values: Lease) -> None:
    """In place of an older one. A version has one value for ever, so the one that came first is as good."""
    waiting = where.get(fragment)
    if waiting is not None and waiting[0] >= version:
        values.release()
        return
    if waiting is not None:
        waiting[1].release()
    where[fragment] = (version, values)
