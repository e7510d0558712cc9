"""An answer that comes in pieces: each rank of a learner sends what it supplies, and it counts when all of it is here.

Every piece has its own length, its own checksum and its place; it is written where it belongs while it arrives, and is
there only once it is whole. Half answers have a fixed number of buffers of their own: whatever becomes of them, those
of learners of one rank are never waiting for a piece that does not come. A half answer goes when nobody wants it any
more, or when the same learner has begun a newer one for the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics.codec import CASTS, Buffer, Codec
from gruppetto.numerics.fragments import FragmentSpec
from gruppetto.numerics.runs import Runs
from gruppetto.runtime.intake import Body, Intake, Upload, check_whole
from gruppetto.runtime.wire import checksum, octets

__all__ = ["Assemblies", "PieceUpload"]

Key = TypeVar("Key", bound=Hashable)


class _Assembly:
    """One answer: the upload of its whole body, and what of it has come."""

    def __init__(self, spec: FragmentSpec, codec: Codec, intake: Intake) -> None:
        self.spec, self.codec = spec, codec
        self._whole: Upload | None = intake.open(spec, codec.payload_bytes(spec.numel))
        self._came: set[Runs] = set()
        self._coming: set[Runs] = set()
        self.over = False
        """It is complete, or has been given up."""

    @property
    def buffer(self) -> NDArray[np.uint8]:
        assert self._whole is not None
        return self._whole.buffer

    def awaits(self, runs: Runs) -> bool:
        """The piece is not on its way at this moment; one that is may be sent again when that has ended."""
        return runs not in self._coming

    def expect(self, runs: Runs) -> None:
        """Raises :class:`ProtocolError` for a piece that overlaps another one."""
        assert self.awaits(runs)
        if runs not in self._came:
            for other in self._came | self._coming:
                if _overlap(runs, other):
                    raise ProtocolError("two pieces of one answer overlap; all ranks have to attach the same model")
        self._coming.add(runs)

    def came(self, runs: Runs) -> Body | None:
        """A piece is whole; the body, if it was the last one."""
        self._coming.discard(runs)
        if self.over:
            self._let_go()
            return None
        self._came.add(runs)
        if sum(piece.numel for piece in self._came) < self.spec.numel or self._coming:
            return None
        whole, self._whole, self.over = self._whole, None, True
        assert whole is not None
        return whole.fill()

    def failed(self, runs: Runs) -> None:
        """A piece did not come whole."""
        self._coming.discard(runs)
        self._came.discard(runs)  # sent again, it may have been written over in part
        self._let_go()

    def give_up(self) -> None:
        self.over = True
        self._let_go()

    def _let_go(self) -> None:
        """Of the buffer, once nobody writes to it any more."""
        if self.over and not self._coming and self._whole is not None:
            whole, self._whole = self._whole, None
            whole.give_up()


class PieceUpload:
    """A piece on its way to its places. Used like :class:`~gruppetto.runtime.intake.Upload`."""

    def __init__(self, assembly: _Assembly, runs: Runs, crc: int | None) -> None:
        self._assembly, self._runs = assembly, runs
        self._expected_crc, self._crc = crc, 0
        word = assembly.codec.word_bytes
        self._places = [(start * word, stop * word) for start, stop in runs]
        self._places.reverse()
        self.length = self.missing_bytes = assembly.codec.payload_bytes(runs.numel)
        self._over = False
        assembly.expect(runs)

    @property
    def arrived(self) -> int:
        """Bytes that are here."""
        return self.length - self.missing_bytes

    @property
    def crc(self) -> int:
        """Of what is here."""
        return self._crc

    def room(self) -> memoryview:
        """The place of the next bytes, as far as they lie together."""
        start, stop = self._places[-1]
        return self._assembly.buffer.data[start:stop]

    def wrote(self, num_bytes: int) -> None:
        """So many bytes are in their place."""
        start, stop = self._places.pop()
        self._crc = checksum(self._assembly.buffer[start : start + num_bytes], self._crc)
        self.missing_bytes -= num_bytes
        if start + num_bytes < stop:
            self._places.append((start + num_bytes, stop))

    def write(self, chunk: Buffer) -> None:
        """Take the next bytes. Raises :class:`ProtocolError` if there are more than there should be."""
        data = octets(chunk)
        if len(data) > self.missing_bytes:
            raise ProtocolError(f"the body is longer than the {self.length} bytes it should have")
        while len(data):
            place = self.room()
            part = data[: len(place)]
            place[: len(part)] = part
            self.wrote(len(part))
            data = data[len(part) :]

    def expect(self, crc: int) -> None:
        """The checksum that the whole piece is to have, where it came behind it."""
        self._expected_crc = crc

    def _complete(self) -> None:
        """All of it is here, and undamaged."""

    def finish(self) -> Body | None:
        """The whole answer, if this was what it lacked. Raises :class:`ProtocolError` for a piece that is damaged."""
        check_whole(self.missing_bytes, self._crc, self._expected_crc)
        self._over = True
        self._complete()
        return self._assembly.came(self._runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over:
            self._over = True
            self._assembly.failed(self._runs)


class _BlockUpload(PieceUpload):
    """A piece in an encoding of blocks, which is decoded when it is whole."""

    def __init__(self, assembly: _Assembly, runs: Runs, crc: int | None, codec: Codec) -> None:
        super().__init__(assembly, runs, crc)
        self._codec = codec
        self.length = self.missing_bytes = codec.payload_bytes(runs.numel)
        self._payload = np.empty(self.length, np.uint8)

    def room(self) -> memoryview:
        return self._payload.data[self.arrived :]

    def wrote(self, num_bytes: int) -> None:
        self._crc = checksum(self._payload[self.arrived : self.arrived + num_bytes], self._crc)
        self.missing_bytes -= num_bytes

    def _complete(self) -> None:
        if not self._assembly.over:  # else it has no room any more
            data = self._codec.decode(self._payload, self._runs.numel).view(np.uint8)
            for start, stop in reversed(self._places):
                self._assembly.buffer[start:stop], data = data[: stop - start], data[stop - start :]
        self._payload = self._payload[:0].copy()


class Assemblies(Generic[Key]):
    """The answers of which some pieces are here, by whatever names an answer. Their buffers come from ``intake``.

    ``codec``: how the pieces are encoded; that of ``intake`` unless it has blocks.
    """

    def __init__(self, intake: Intake, codec: Codec | None = None) -> None:
        self.intake, self.codec = intake, codec or intake.codec
        self._open: dict[Key, _Assembly] = {}

    @classmethod
    def of(cls, codec: Codec, largest_numel: int, num_bodies: int) -> Self:
        """For pieces in ``codec``, with room for so many answers."""
        whole = codec if codec.block_numel == 1 else CASTS["fp32"]
        return cls(Intake(whole, largest_numel, num_bodies), codec)

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self, key: Key, runs: Runs) -> bool:
        """This piece of an answer can be taken in now."""
        assembly = self._open.get(key)
        return self.intake.has_room() if assembly is None else assembly.awaits(runs)

    def check(self, runs: Runs, length: int) -> None:
        """Raises :class:`ProtocolError` if ``length`` bytes cannot be this piece."""
        expected = self.codec.payload_bytes(runs.numel)
        if not expected or length != expected:
            raise ProtocolError(f"a {self.codec.name} piece has {expected} bytes, {length} are announced")

    def open(self, key: Key, spec: FragmentSpec, runs: Runs, length: int, crc: int | None) -> PieceUpload:
        """Begin to take in a piece, while there is room. Raises :class:`ProtocolError` if it can be none."""
        self.check(runs, length)
        assembly = self._open.get(key)
        if assembly is None:
            assembly = self._open[key] = _Assembly(spec, self.intake.codec, self.intake)
        if self.codec.block_numel > 1:
            return _BlockUpload(assembly, runs, crc, self.codec)
        return PieceUpload(assembly, runs, crc)

    def finish(self, key: Key, upload: PieceUpload) -> Body | None:
        """A piece has arrived; the whole body with the last one."""
        body = upload.finish()
        if body is not None:
            self._open.pop(key, None)
        return body

    def __iter__(self) -> Iterator[Key]:
        return iter(self._open)

    def drop(self, unwanted: Callable[[Key], bool]) -> None:
        """Give up the half answers that nobody wants any more."""
        for key in [key for key in self._open if unwanted(key)]:
            self._open.pop(key).give_up()


def _overlap(one: Runs, other: Runs) -> bool:
    return any(other.clipped(start, stop).bounds for start, stop in one)
