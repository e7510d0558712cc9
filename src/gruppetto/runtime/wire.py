"""What travels between a learner and the syncer: the endpoints, and the frames with their limits.

A control frame is msgpack ``[name, payload]``, where the payload is one of the protocol's messages or one of the
envelopes below. Decoding goes in two phases: the name is looked at first, and only a name that is allowed here and now
is decoded further, into its own type. Whatever does not fit raises :class:`ProtocolError` with one plain sentence.

============================================  ====================================================================
``GET  /v1/control``                          WebSocket. First a :class:`HelloFrame`, then frames both ways
``POST /v1/heartbeat``                        a Heartbeat frame, on a connection of its own; 204
``PUT  /v1/contribution/{round}/{fragment}``  a tensor body; the Answer in ``ANSWER_HEADER``; 200 or 4xx
``PUT  /v1/seed/{fragment}``                  initial weights, fp32; 409 from who is not asked for them any more
``GET  /v1/fragment/{fragment}?version=v``    a tensor body of version v or newer, or the step to it from
                                              ``BASE_HEADER``
``GET  /v1/bodies``                           an upgrade: see :mod:`gruppetto.runtime.body_wire`
``GET  /v1/status``                           JSON for people and tools
``GET  /v1/model``                            all tensors as one safetensors stream, consistent to one round
``POST /v1/checkpoint?name=NAME``             begin a checkpoint of the whole run; 202 or 409, JSON
``GET  /v1/checkpoint``                       how the newest one stands, JSON
``GET  /v1/directory``                        where the shards of the run are, JSON
``PUT  /v1/directory``                        a shard says where it is, to the first one; JSON, 200 or 409
``GET  /v1/revoked/{serial}``                 whether a certificate counts no more: 410, or else 204; donors ask
``GET  /healthz``                             "ok"
============================================  ====================================================================

A rank of a learner puts and gets its part of a fragment alone: ``RUNS_HEADER`` says which, and length and checksum are
those of the part. The answer to a piece of a contribution is "held" until the last one is in. All headers are in
:mod:`~gruppetto.runtime.headers`.

>>> frame = ProgressFrame(
...     progress=Progress(learner="a", incarnation=1, epoch=1, clock=7, step_s=0.5, steps=7, tokens=70, cursor=7),
...     metrics={"loss": 2.5},
... )
>>> decode_frame(encode_frame(frame), FROM_LEARNER) == frame
True
>>> decode_frame(encode_frame(frame), FROM_SYNCER)
Traceback (most recent call last):
...
gruppetto.errors.ProtocolError: a ProgressFrame may not come here
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from gruppetto.errors import LayoutError, ProtocolError
from gruppetto.numerics.codec import Buffer
from gruppetto.numerics.crc import crc32
from gruppetto.numerics.deal import WHOLE, Shard, part_of
from gruppetto.numerics.fragments import Fragmentation
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Ask,
    Begin,
    Clipping,
    Deferred,
    Goodbye,
    Heartbeat,
    Hello,
    Marked,
    Marker,
    Progress,
    Refusal,
    Rejection,
    Welcome,
)
from gruppetto.runtime.cut import cut
from gruppetto.runtime.headers import ANSWER_HEADER
from gruppetto.runtime.plausible import check_value, is_name

__all__ = [
    "FROM_LEARNER",
    "FROM_SYNCER",
    "MAX_FRAME_BYTES",
    "MAX_HELLO_BYTES",
    "MAX_METRICS",
    "MAX_TENSORS",
    "WIRE_VERSION",
    "CloseCode",
    "Frame",
    "HelloFrame",
    "ProgressFrame",
    "RecoveryNote",
    "WelcomeFrame",
    "check_wire_version",
    "checksum",
    "decode_answer",
    "decode_frame",
    "encode_answer",
    "encode_frame",
    "octets",
]

WIRE_VERSION = 5
"""Rises with every frame, field or header that the other side must know of. 2: Marker, Marked, Clipping, donors, and
parting contributions. 3: shards. 4: checksums behind bodies. 5: visitors."""

MAX_FRAME_BYTES = 1 << 20
"""Of any frame but the first. The longest is a Welcome with 4096 versions and the run's settings."""
MAX_HELLO_BYTES = 16 << 20
"""A HelloFrame lists every tensor, with names of up to 200 characters or so."""
MAX_TENSORS = 65_536
"""The largest models have some ten thousand; looking at more would keep the other learners waiting."""
MAX_METRICS = 32
MIN_BYTES_PER_S = 4096
"""Whoever sends a body more slowly for the stall time stands still, whatever drips."""
MAX_ANSWER_CHARS = 4096


class CloseCode:
    """Why the syncer closes a control connection; the reason text says more."""

    GOING_AWAY = 1001
    """The syncer stops. Dial again: it comes back."""
    PROTOCOL = 1002
    """A frame that may not be said. The text names it."""
    REFUSED = 1008
    """A Refusal frame came before this. Final."""
    REPLACED = 4000
    """Another connection of the same learner has taken over."""
    TOO_SLOW = 4001
    """Frames piled up. Dial again: the Welcome brings you up to date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloFrame:
    """The first frame of every control connection: the Hello, and the whole layout to compare.

    ``layout`` has one (name, shape, dtype) per tensor, in the model's order.
    """

    hello: Hello
    layout: tuple[tuple[str, tuple[int, ...], str], ...]
    wire: int = WIRE_VERSION
    library: str = ""
    """The learner's version of Gruppetto, for the log."""

    @classmethod
    def of(cls, hello: Hello, layout: Layout, library: str = "") -> HelloFrame:
        return cls(hello=hello, layout=tuple((t.name, t.shape, t.dtype) for t in layout.tensors), library=library)

    def to_layout(self) -> Layout:
        """The layout, checked against the hash in the Hello. Raises :class:`ProtocolError`.

        Takes a second or so for :data:`MAX_TENSORS`. Where a layout is known already, compare the hash, and find out
        what differs with :meth:`difference_from`.
        """
        try:
            layout = Layout(tensors=tuple(TensorSpec(name=n, shape=s, dtype=d) for n, s, d in self.layout))
        except LayoutError as wrong:
            raise ProtocolError(f"the layout in the HelloFrame is impossible: {wrong}") from wrong
        if layout.layout_hash != self.hello.layout_hash:
            raise ProtocolError(f"the layout has hash {layout.layout_hash}, the Hello says {self.hello.layout_hash}")
        return layout

    def difference_from(self, here: Layout) -> str:
        """The first difference to a known layout in one sentence; "" if there is none. Cheap, and checks nothing."""
        for index, (mine, (name, shape, dtype)) in enumerate(zip(here.tensors, self.layout, strict=False)):
            if (mine.name, mine.shape, mine.dtype) != (name, shape, dtype):
                there = f"{name[:80]!r} {dtype[:80]} {shape[:16]}"
                return f"tensor {index} is {mine} here and {there} there"
        if len(here.tensors) == len(self.layout):
            return ""
        return f"{len(here.tensors)} tensors here, {len(self.layout)} there"


@dataclass(frozen=True, slots=True, kw_only=True)
class WelcomeFrame:
    """The Welcome, and what a learner's shell needs to know beyond it."""

    welcome: Welcome
    fragmenter: str
    fragments_asked: int
    """The number of fragments to cut by; ``welcome.num_fragments`` is what came of it."""
    merge: tuple[tuple[str, str], ...]
    """The run's own merge rules (regex, rule); they decide which tensors may be split."""
    uplink: str
    """Codec of contributions."""
    downlink: str
    """Codec of published fragments."""
    layout_hash: str
    fragmentation_hash: str
    """Of the fragments of this shard."""
    liveness_s: float
    """Without a heartbeat for this long a learner is not live."""
    run: dict[str, Any]
    """The run's settings for learners, as the syncer was given them. The wire does not look inside."""
    shard: str = WHOLE
    """Which of the run's shards this is (:class:`~gruppetto.numerics.deal.Shard` in words)."""

    def to_fragmentation(self, layout: Layout) -> Fragmentation:
        """Cut the learner's own layout as the syncer did. Raises :class:`ProtocolError` if the results differ."""
        whole = cut(layout, self.fragments_asked, self.fragmenter, self.merge)
        parts = part_of(whole, Shard.parse(self.shard))
        if parts.fragmentation_hash != self.fragmentation_hash:
            raise ProtocolError(
                f"this side cuts the model differently (fragmentation {parts.fragmentation_hash}, the syncer has "
                f"{self.fragmentation_hash}); run the same version of Gruppetto on both"
            )
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryNote:
    """How a process that began in a run under way came by its state. For people; decides nothing."""

    source: str
    """A :class:`gruppetto.protocol.donors.Source`."""
    donor: str = ""
    """The peer's name."""
    seconds: float = 0.0
    """From the Welcome to the state being in use."""
    payload_bytes: int = 0
    """Received from peers, also from those that failed."""
    text: str = ""
    """Who had nothing, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressFrame:
    """Progress, with a few numbers for people to look at (a loss). They decide nothing."""

    progress: Progress
    metrics: dict[str, float] = field(default_factory=dict)
    recovery: RecoveryNote | None = None
    """Once, when there is something to tell."""


Frame = (
    HelloFrame
    | WelcomeFrame
    | ProgressFrame
    | Refusal
    | Begin
    | Ask
    | Answer
    | Deferred
    | Rejection
    | Clipping
    | Announcement
    | Marker
    | Marked
    | Heartbeat
    | Goodbye
)

FROM_LEARNER = frozenset({"ProgressFrame", "Deferred", "Marked", "Goodbye"})
"""Frames that a syncer takes on an open control connection (after the HelloFrame)."""
FROM_SYNCER = frozenset({"WelcomeFrame", "Refusal", "Begin", "Ask", "Rejection", "Clipping", "Announcement", "Marker"})

_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in Frame.__args__
}
_encoder = msgspec.msgpack.Encoder()


def encode_frame(frame: Frame) -> bytes:
    """The bytes of one frame."""
    return _encoder.encode((type(frame).__name__, frame))


def decode_frame(data: bytes | bytearray | memoryview, allowed: Collection[str]) -> Frame:
    """The frame that the bytes hold, if its name is among ``allowed`` and every value is plausible.

    Raises :class:`ProtocolError` otherwise.
    """
    limit = MAX_HELLO_BYTES if "HelloFrame" in allowed else MAX_FRAME_BYTES
    if len(data) > limit:
        raise ProtocolError(f"a frame of {len(data)} bytes; at most {limit} are allowed")
    try:
        name, payload = _envelope.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError("not a frame: msgpack [name, payload] is expected") from wrong
    if name not in allowed:
        raise ProtocolError(f"a {name if name in _decoders else 'frame of unknown name'} may not come here")
    try:
        frame: Frame = _decoders[name].decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError(f"a malformed {name}: {wrong}") from wrong
    _check(frame, name)
    return frame


class _Introduction(msgspec.Struct):
    """All that has to be understood of the HelloFrame of another version."""

    wire: int


_introduction = msgspec.msgpack.Decoder(tuple[str, _Introduction])


def check_wire_version(hello: bytes) -> None:
    """Raises :class:`ProtocolError` if the HelloFrame in ``hello`` is of another version, before the rest is read: what
    another version says may not even look like a frame of ours."""
    try:
        name, introduction = _introduction.decode(hello)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # no HelloFrame of any version; that is said with more words elsewhere
    theirs = introduction.wire
    if name == "HelloFrame" and theirs != WIRE_VERSION:
        whose = "learner" if theirs < WIRE_VERSION else "syncer"
        raise ProtocolError(
            f"the learner speaks wire version {theirs}, this syncer {WIRE_VERSION}; upgrade Gruppetto at the {whose}"
        )


def encode_answer(answer: Answer) -> str:
    """The value of :data:`ANSWER_HEADER`."""
    return base64.urlsafe_b64encode(encode_frame(answer)).decode("ascii")


def decode_answer(header: str) -> Answer:
    """The Answer in a header's value, without what only a look at its body can tell. Raises :class:`ProtocolError`."""
    if len(header) > MAX_ANSWER_CHARS:
        raise ProtocolError(f"{ANSWER_HEADER} has {len(header)} characters; at most {MAX_ANSWER_CHARS} are allowed")
    try:
        data = base64.b64decode(header.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as wrong:
        raise ProtocolError(f"{ANSWER_HEADER} is not base64url") from wrong
    answer = decode_frame(data, {"Answer"})
    assert isinstance(answer, Answer)
    # What the receiver finds out by looking, nobody may say of himself.
    return replace(answer, finite=True, norms=())


def checksum(body: Buffer, start: int = 0) -> int:
    """CRC-32 of a body, or of its continuation if ``start`` is the checksum so far. On the wire: ``f"{crc:08x}"``."""
    return crc32(body, start)


def octets(body: Buffer) -> memoryview:
    """The bytes of a body, to be sliced without a copy."""
    return body.data if isinstance(body, np.ndarray) else memoryview(body)


def _check(frame: Frame, name: str) -> None:
    match frame:
        case HelloFrame():
            # The layout is checked where it is used; a frame of 16 MiB is not walked twice.
            if len(frame.layout) > MAX_TENSORS:
                raise ProtocolError(f"{name}.layout has {len(frame.layout)} tensors; at most {MAX_TENSORS} are allowed")
            check_value(frame.hello, f"{name}.hello")
            check_value(frame.library, f"{name}.library")
        case WelcomeFrame():
            check_value(frame.welcome, f"{name}.welcome")
        case ProgressFrame():
            check_value(frame.progress, f"{name}.progress")
            check_value(frame.recovery, f"{name}.recovery")
            if len(frame.metrics) > MAX_METRICS or not all(is_name(key) for key in frame.metrics):
                raise ProtocolError(f"{name}.metrics: at most {MAX_METRICS} entries with plain names are allowed")
        case _:
            check_value(frame, name)
