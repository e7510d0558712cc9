"""What rank 0 of a learner tells its other ranks, and when they may do it.

Rank 0 alone has the core and talks with the syncer. What its core decides becomes orders, numbered and carried out by
every rank in this order. Those that concern a step boundary travel with the :class:`Word` that ends the boundary, over
the learner's own collective; those that move vectors (:data:`SWIFT`) are also sent ahead, so that a rank can begin in
the middle of a step. The word holds all of them once more: nothing depends on what is sent ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from gruppetto.errors import ProtocolError
from gruppetto.protocol.actions import Apply, DropRests, KeepRest, Pull, Seed, TakeSnapshot
from gruppetto.protocol.events import LinkDown
from gruppetto.protocol.messages import Answer, Donor
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import Fragment, Round, Version
from gruppetto.runtime.wire import WelcomeFrame

__all__ = [
    "SWIFT",
    "Begin",
    "DropCut",
    "Fetch",
    "GiveCut",
    "Keep",
    "PutBases",
    "RankOrder",
    "SavePart",
    "Welcomed",
    "Word",
    "decode_order",
    "decode_word",
    "encode_order",
    "encode_word",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcomed:
    """The syncer at ``address`` has taken the learner in."""

    frame: WelcomeFrame
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Every rank has its part of this version: it is the one that may be applied next."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begin from this (:class:`gruppetto.protocol.donors.Source`), as rank 0 has done, in place of anything before."""

    source: str
    number: int = 0
    """Of this errand; 0 for what cannot fail."""
    place: str = ""
    """The checkpoint that it is."""
    versions: tuple[Version, ...] = ()
    """A peer's: of the bases that are taken with it; () if they are of an earlier life of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetch this rank's part of what a peer gives, in place of any other, and keep it until a :class:`Begin`."""

    number: int
    donor: Donor
    manifest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveCut:
    """At the end of this boundary all ranks copy their portions of a cut of this name, for other learners."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCut:
    """Nobody needs it any more."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavePart:
    """Save this rank's part of a checkpoint of the whole run, as everything is now."""

    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBases:
    """The run is over: the model becomes its last weights."""


RankOrder = (
    Welcomed
    | LinkDown
    | Pull
    | Answer
    | Seed
    | Keep
    | Apply
    | TakeSnapshot
    | Begin
    | PutBases
    | KeepRest
    | DropRests
    | SavePart
    | Fetch
    | GiveCut
    | DropCut
)
SWIFT = (Welcomed, LinkDown, Pull, Answer, KeepRest, DropRests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """The end of a boundary: what to carry out, and how the learner stands. The same on every rank."""

    first: int
    """The number of the first of ``orders``."""
    orders: tuple[bytes, ...]
    fragments: int
    """Of how many every rank knows, now that it has heard this."""
    sent_ahead: int
    """So many orders have been sent ahead by now."""
    again: bool
    """Another boundary follows at once: rank 0 waits for something."""
    state: LearnerState
    rounds: Round | None
    step_s: float
    linked: bool
    begun: bool
    finished: bool
    parted: bool
    """It has left the run on notice."""
    closing: bool
    """A rank has left its loop."""
    failure: str
    """Why all ranks end now; "" if they do not."""
    refusal: tuple[str, str] | None
    waiting_for: str


_orders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in RankOrder.__args__
}
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_word = msgspec.msgpack.Decoder(Word)
_encoder = msgspec.msgpack.Encoder()


def encode_order(order: RankOrder) -> bytes:
    return _encoder.encode((type(order).__name__, order))


def decode_order(data: bytes) -> RankOrder:
    """Raises :class:`ProtocolError` for what is no order."""
    try:
        name, payload = _envelope.decode(data)
        order: RankOrder = _orders[name].decode(payload)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as wrong:
        raise ProtocolError(f"rank 0 gave an order that is none ({wrong})") from wrong
    return order


def encode_word(word: Word) -> bytes:
    return _encoder.encode(word)


def decode_word(data: bytes) -> Word:
    """Raises :class:`ProtocolError` for what is no word."""
    try:
        return _word.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise ProtocolError(f"rank 0 said something that is no word ({wrong}); run one version on all ranks") from wrong
