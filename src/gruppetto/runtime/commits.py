"""A commit is one file: the values that have changed, then the control record, then a trailer that vouches for it.

::

    commits/e00006-c000000017-t000000000146.commit
            epoch  number     the last round that may be published under it

    [Θ of a fragment][its momentum][what its steps left unsaid] … [record: msgpack] gruppetto commit CRC LENGTH

The name says of a file that cannot be read any more what a new life has to know of it. The record says where the newest
value of every fragment lies, in this file or in an older one, and where the value before that lies, each with its
checksum. Nothing is ever written twice, or into an existing file: a commit costs one file and its directory, each
forced once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gruppetto.files import open_file
from gruppetto.numerics.codec import Buffer
from gruppetto.numerics.deal import WHOLE
from gruppetto.numerics.downlink import Kept
from gruppetto.numerics.kernels import Float32
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch, Fragment, Round, Version
from gruppetto.runtime.wire import checksum

__all__ = ["COMMITS", "MOST", "STORE_VERSION", "Commit", "CommitName", "DamagedError", "Identity", "Place", "pieces_of"]

STORE_VERSION = 2
COMMITS = "commits"
MOST = 2**31 - 1
"""Of epochs, commits and rounds in a name: sixty years of one a second. What says more was not named by us."""
_NAME = re.compile(r"e(\d{5,})-c(\d{9,})-t(\d{12,})\.commit")
_TRAILER = re.compile(rb"gruppetto commit ([0-9a-f]{8}) (\d{12})\n")
_TRAILER_BYTES = len(b"gruppetto commit 00000000 000000000000\n")
MAX_RECORD_BYTES = 1 << 30
PIECE_BYTES = 1 << 18
"""Of a value, handed out at a time."""


class DamagedError(ValueError):
    """A commit, or a value in one, does not check out; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What may not change between two lives of a run, because the values depend on it."""

    fragments_asked: int
    fragmenter: str
    merge: tuple[tuple[str, str], ...]
    optimizer: str
    shard: str = WHOLE
    """Which fragments lie here: a :class:`~gruppetto.numerics.deal.Shard` in words."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CommitName:
    """In the order in which commits count: a later life before an earlier one, whenever it was written.

    >>> CommitName(epoch=6, number=17, until=146).file
    'e00006-c000000017-t000000000146.commit'
    >>> CommitName.parse(_) == CommitName(epoch=6, number=17, until=146), CommitName.parse("notes.txt")
    (True, None)
    """

    epoch: Epoch
    number: int
    until: Round

    @classmethod
    def parse(cls, file: str) -> CommitName | None:
        found = _NAME.fullmatch(file)
        if found is None:
            return None
        epoch, number, until = map(int, found.groups())
        name = cls(epoch=Epoch(epoch), number=number, until=Round(until))
        return name if max(epoch, number, until) <= MOST and name.file == file else None

    @staticmethod
    def is_absurd(file: str) -> bool:
        """Whether this looks like the name of a commit, and no commit can have it."""
        return _NAME.fullmatch(file) is not None and CommitName.parse(file) is None

    @property
    def file(self) -> str:
        return f"e{self.epoch:05}-c{self.number:09}-t{self.until:012}.commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value lies: Θ and the arrays of the outer optimizer, each float32 [numel], end to end, then words."""

    file: str
    offset: int
    size_bytes: int
    checksum: int
    arrays: int
    version: Version
    merged: int
    """Fragment-tokens merged in it."""
    words_bytes: int = 0
    """Of the size, at the end: what steps have left unsaid, as :data:`~gruppetto.numerics.downlink.REST`."""

    def read(self, directory: Path) -> tuple[Float32, Kept]:
        """The value, checked. Raises :class:`DamagedError`."""
        try:
            with open_file(directory / self.file) as file:
                file.seek(self.offset)
                data = file.read(self.size_bytes)
        except FileNotFoundError:
            raise DamagedError("it is missing") from None
        except OSError as wrong:
            raise DamagedError(wrong.strerror or "it cannot be read") from wrong
        if len(data) != self.size_bytes:
            raise DamagedError(f"it ends {self.size_bytes - len(data)} bytes too early")
        if checksum(data) != self.checksum:
            raise DamagedError("its checksum is wrong")
        end = self.size_bytes - self.words_bytes
        theta, *kept = np.split(np.frombuffer(data, "<f4", end // 4), self.arrays)
        if self.words_bytes:
            kept.append(np.frombuffer(data, np.uint8, offset=end))
        return theta, tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The control record."""

    store: int = STORE_VERSION
    run_id: str
    epoch: Epoch
    number: int
    identity: Identity
    state: SyncerState | None
    """None until a run has weights."""
    places: tuple[tuple[Place, ...], ...] = ()
    """By fragment: its newest value, then the one before."""
    snapshots: tuple[str, ...] = ()
    """Older commits that are kept, newest first."""

    @property
    def name(self) -> CommitName:
        until = 0 if self.state is None else self.state.round + self.state.reserve
        return CommitName(epoch=self.epoch, number=self.number, until=Round(until))

    @classmethod
    def read(cls, path: Path) -> Commit:
        """The record of a commit. Raises :class:`DamagedError`, or :class:`NotImplementedError` with another format."""
        try:
            with open_file(path) as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TRAILER_BYTES))
                trailer = _TRAILER.fullmatch(file.read())
                if trailer is None:
                    raise DamagedError("it has no proper end")
                length = int(trailer.group(2))
                if length > min(MAX_RECORD_BYTES, size - _TRAILER_BYTES):
                    raise DamagedError("it is too short")
                file.seek(size - _TRAILER_BYTES - length)
                record = file.read(length)
        except FileNotFoundError:
            raise DamagedError("it is missing") from None
        except OSError as wrong:
            raise DamagedError(wrong.strerror or "it cannot be read") from wrong
        if f"{checksum(record):08x}".encode() != trailer.group(1):
            raise DamagedError("its checksum is wrong")
        try:
            version: Any = msgspec.msgpack.decode(record)["store"]
            if version != STORE_VERSION:
                raise NotImplementedError(str(version))
            return msgspec.msgpack.decode(record, type=cls)
        except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as wrong:
            raise DamagedError(str(wrong)) from wrong


def pieces_of(
    draft: Commit, values: Mapping[Fragment, tuple[Float32, Kept]], written: list[Commit]
) -> Iterator[Buffer]:
    """The bytes of a commit, one after another, none of them copied. Each piece is in the cache: its checksum has just
    been taken. ``written`` gets the commit with the places of ``values`` in it."""
    places: list[list[Place]] = [list(of_fragment) for of_fragment in draft.places]
    places, offset = places or [[] for _ in (draft.state.versions if draft.state else ())], 0
    for p, (theta, kept) in sorted(values.items()):
        assert draft.state is not None
        crc, size = 0, 0
        words_bytes = sum(array.nbytes for array in kept if array.dtype == np.uint8)
        for array in (theta, *kept):
            raw = _raw(array)
            size += raw.nbytes
            for at in range(0, raw.nbytes, PIECE_BYTES):
                piece = raw[at : at + PIECE_BYTES]
                crc = checksum(piece, crc)
                yield piece
        place = Place(
            file=draft.name.file,
            offset=offset,
            size_bytes=size,
            checksum=crc,
            arrays=1 + len(kept) - bool(words_bytes),
            version=draft.state.versions[p],
            merged=draft.state.ledger.merged_in[p],
            words_bytes=words_bytes,
        )
        places[p] = [place, *places[p][:1]]
        offset += size
    commit = replace(draft, places=tuple(map(tuple, places)))
    written.append(commit)
    record = msgspec.msgpack.encode(commit)
    yield record
    yield f"gruppetto commit {checksum(record):08x} {len(record):012}\n".encode()


def _raw(values: Float32 | NDArray[np.uint8]) -> memoryview:
    assert values.dtype in (np.dtype("<f4"), np.uint8)
    return np.ascontiguousarray(values).view(np.uint8).data
