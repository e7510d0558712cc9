"""What tensors would hold, if there were any: which batches, and on top of which value.

The cores never see this. It is kept by the hands that would move the bytes, so that observers can compare what the
cores believe with what would be in the weights.
"""

from __future__ import annotations

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

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One value of a global fragment Θ."""

    number: int
    """No two values have the same."""
    fragment: Fragment
    version: Version
    parts: tuple[Work, ...] = ()
    """What the outer step that made it has merged."""
    booked: tuple[int, ...] = ()
    """The tokens that the syncer's core said were in each part."""


class Cargo(Lease):
    """Stands where a borrowed tensor would: costs nothing, and says what the tensor would hold."""

    __slots__ = ("what",)

    def __init__(self, what: Work | None) -> None:
        self.what = what

    def hold(self) -> Cargo:
        return self

    def release(self) -> None:
        pass
