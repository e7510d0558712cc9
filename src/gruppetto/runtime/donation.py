"""A learner's state as one learner gives it to another: a manifest, and the bytes of named tensors end to end.

What is given is a *cut*: optimizer state, buffers and bases as they were together at one step boundary. The manifest
says which tensor lies where; the bytes are asked for by range, so that a broken transfer goes on where it broke, and
every range comes with its own digest. A digest for each chunk in the manifest would have to be computed before the
first byte could leave, which for a large model takes longer than any newcomer should wait.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import msgspec

from gruppetto.errors import AddressError, ProtocolError
from gruppetto.protocol.units import NEVER, Version
from gruppetto.runtime.plausible import MAX_COUNT, MAX_ITEMS
from gruppetto.runtime.setting import host_and_port
from gruppetto.runtime.wire import MAX_TENSORS

__all__ = [
    "ALIGN_BYTES",
    "CHUNK_BYTES",
    "ITEM_BYTES",
    "Cut",
    "Manifest",
    "NamedNumber",
    "NamedTensor",
    "Portion",
    "decode_manifest",
    "digest_of",
    "donation_secret",
    "encode_manifest",
]

CHUNK_BYTES = 4 << 20
"""What is asked for, checked, and if need be asked for again, at a time."""
ALIGN_BYTES = 64
"""Every tensor begins at a multiple of this, so that it can be used where it lies."""
PARTS = frozenset({"optimizer", "buffer", "base"})
MAX_PORTIONS = 4096
MAX_STATE_TENSORS = 4 * MAX_TENSORS
"""Two moments and a step count for each tensor of the model, and buffers."""

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Kinds of elements, with their size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """One tensor. ``part`` says of what: "optimizer" (``key`` is the kind of state), "buffer" or "base".

    ``name`` is a parameter's, a buffer's, or for a base the number of its fragment.
    """

    part: str
    name: str
    key: str = ""
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def payload_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNumber:
    """Optimizer state that is no tensor, as some optimizers keep their step counts."""

    name: str
    key: str
    value: int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What lies at one rank of a donor: runs of the cut's bytes, in order. ``address`` "": the one that was asked."""

    address: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a cut holds. ``portions``: of a donor of many ranks, who has which bytes; () if all of them are here."""

    cut: str
    """Its name, under which the bytes are asked for."""
    run_id: str
    layout_hash: str
    fragmentation_hash: str
    versions: tuple[Version, ...]
    """Of the bases: at the donor's step boundary, and as the syncer published them."""
    optimizer: str
    """The kind of the optimizer; only the same kind can use its state."""
    tensors: tuple[NamedTensor, ...]
    numbers: tuple[NamedNumber, ...] = ()
    total_bytes: int
    chunk_bytes: int = CHUNK_BYTES
    portions: tuple[Portion, ...] = ()


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """The manifest, if everything that it names lies where it can lie. Raises :class:`ProtocolError`."""
    try:
        manifest = msgspec.msgpack.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError(f"a malformed manifest: {wrong}") from wrong
    if not (0 <= manifest.total_bytes <= MAX_COUNT and 1 <= manifest.chunk_bytes <= 1 << 30):
        raise ProtocolError("the manifest's sizes are impossible")
    if max(len(manifest.tensors), len(manifest.numbers)) > MAX_STATE_TENSORS or len(manifest.versions) > MAX_ITEMS:
        raise ProtocolError("the manifest lists more than any state has")
    if not all(NEVER <= version <= MAX_COUNT for version in manifest.versions):
        raise ProtocolError("a version in the manifest is out of range")
    named = [(t.part, t.name, t.key) for t in manifest.tensors] + [
        ("optimizer", n.name, n.key) for n in manifest.numbers
    ]
    if len(set(named)) < len(named) or not {part for part, _, _ in named} <= PARTS:
        raise ProtocolError("the manifest names something twice, or what no state has")
    end = 0
    for tensor in manifest.tensors:
        if tensor.dtype not in ITEM_BYTES or not all(0 <= size <= MAX_COUNT for size in tensor.shape):
            raise ProtocolError(f"the manifest's {tensor.name[:80]!r} is no tensor")
        if tensor.offset != _aligned(end):
            raise ProtocolError(f"the manifest's {tensor.name[:80]!r} does not lie where it can lie")
        end = tensor.offset + tensor.payload_bytes
    if not end <= manifest.total_bytes <= _aligned(end):
        raise ProtocolError("the manifest's tensors are not all of it")
    if manifest.portions:
        _check_portions(manifest)
    return manifest


def _check_portions(manifest: Manifest) -> None:
    """Every byte of every tensor lies at one rank."""
    if len(manifest.portions) > MAX_PORTIONS:
        raise ProtocolError("the manifest has more portions than a learner ranks")
    try:
        for portion in manifest.portions:
            if portion.address:
                host_and_port(portion.address)
    except AddressError as wrong:
        raise ProtocolError(f"the manifest names a rank at {portion.address!r:.80}") from wrong
    if any(list(portion.spans) != sorted(portion.spans) for portion in manifest.portions):
        raise ProtocolError("the manifest's portions are in no order")
    spans = iter(sorted(span for portion in manifest.portions for span in portion.spans))
    for tensor in manifest.tensors:
        at, end = tensor.offset, tensor.offset + tensor.payload_bytes
        while at < end:
            start, stop = next(spans, (-1, -1))
            if start != at or not at < stop <= end:
                raise ProtocolError(f"the manifest's {tensor.name[:80]!r} does not lie at its ranks, each byte once")
            at = stop
    if next(spans, None) is not None:
        raise ProtocolError("the manifest's portions are more than its tensors")


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES


class Cut:
    """A manifest and its bytes, in as many pieces of memory as it takes.

    ``segments`` are (offset, bytes), in order; what lies between them is padding. ``ready`` blocks until they may be
    read; ``release`` is called once, when nobody reads them any more.

    >>> manifest = Manifest(cut="c", run_id="r", layout_hash="l", fragmentation_hash="f", versions=(), optimizer="SGD",
    ...     tensors=(), total_bytes=8)
    >>> Cut(manifest, [(0, memoryview(b"abc")), (6, memoryview(b"xy"))]).read(1, 8)
    b'bc\\x00\\x00\\x00xy'
    """

    def __init__(
        self,
        manifest: Manifest,
        segments: Sequence[tuple[int, memoryview]],
        *,
        ready: Callable[[], None] = lambda: None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.manifest, self.ready, self.release = manifest, ready, release
        self._segments = segments
        self._starts = [offset for offset, _ in segments]

    def read(self, start: int, stop: int) -> bytes:
        """A copy of the bytes from ``start`` to ``stop``."""
        into = bytearray(stop - start)
        for offset, data in self._segments[max(0, bisect_right(self._starts, start) - 1) :]:
            if offset >= stop:
                break
            first, last = max(start, offset), min(stop, offset + len(data))
            if first < last:
                into[first - start : last - start] = data[first - offset : last - offset]
        return bytes(into)


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """What tells damaged bytes from good ones: 128 bits of BLAKE2b, hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def donation_secret(token: str | None) -> str | None:
    """What learners of one run show each other. Made from the syncer's token, and no way back leads to it.

    Learners may speak to each other without TLS where the syncer has it: whoever listens there must not learn how to
    speak to the syncer.

    >>> donation_secret(None), donation_secret("a") == donation_secret("a"), donation_secret("a") == "a"
    (None, True, False)
    """
    return None if token is None else hashlib.blake2b(token.encode(), digest_size=32, person=b"donation").hexdigest()
