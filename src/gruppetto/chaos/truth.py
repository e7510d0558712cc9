"""What tensors would hold, if there were any: which batches, and on top of which value.

The cores never see this. It is kept by the hands that would move the bytes, so that observers can compare what the
cores believe with what would be in the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.leases import Lease

__all__ = ["Batch", "Cargo", "Content", "Work"]


class Batch(NamedTuple):
    """One training step's data."""

    slot: int
    number: int
    """Its place in the order of the slot."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """θ of one fragment, or a contribution made of it: these batches on top of this base."""

    session: str
    """The process that did it."""
    base: int
    """Which :class:`Content` it stands on."""
    base_version: Version
    batches: tuple[Batch, ...]
    finite: bool = True
    scale: float = 1.0
    """How many times too long its first piece is."""
    cosine: float = 0.3
    """Against the momentum."""
    number: int = 0
    """Of the snapshot: no two have the same. Its encoding leaves a rest, which goes by this number too."""
    life: tuple[int, int] = (0, 0)
    """The epoch and the incarnation in which it was offered."""
    owes: int = 0
    """Whose rest is said with it; 0: nobody's."""
    at: float = 0.0
    """When it was offered."""

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)

    @property
    def norms(self) -> tuple[float, ...]:
        """Of two pieces. The longer it was worked on the longer, but nobody walks further than his valley is wide."""
        length = math.sqrt(min(len(self.batches), 8))
        return (self.scale * length, 2.0 * length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One value of a global fragment Θ."""

    number: int
    """No two values have the same."""
    fragment: Fragment
    version: Version
    parts: tuple[Work, ...] = ()
    """What the outer step that made it has merged."""
    base: Content | None = None
    """What it was made from."""
    merged: int = 0
    """The tokens that the syncer's core said were in this value, all together."""
    batches: frozenset[tuple[int, int]] = frozenset()
    """(slot, number) of all that is in it."""
    cursors: tuple[tuple[int, int], ...] = ()
    """(slot, one past the last batch in it)."""

    def then(self, number: int, version: Version, parts: tuple[Work, ...] = (), booked: int = 0) -> Content:
        """What an outer step makes of it; or, without parts, the same value under another name."""
        new = frozenset((batch.slot, batch.number) for work in parts for batch in work.batches)
        cursors = dict(self.cursors)
        for slot, batch in new:
            cursors[slot] = max(cursors.get(slot, 0), batch + 1)
        return Content(
            number=number,
            fragment=self.fragment,
            version=version,
            parts=parts,
            base=self,
            merged=self.merged + booked,
            batches=self.batches | new,
            cursors=tuple(cursors.items()),
        )


class Cargo(Lease):
    """Stands where a borrowed tensor would: costs nothing, and says what the tensor would hold."""

    __slots__ = ("what",)

    def __init__(self, what: Work | None) -> None:
        self.what = what

    def hold(self) -> Cargo:
        return self

    def release(self) -> None:
        pass
