"""Taking in a body: bounded, checked while it arrives, and worth nothing until it is whole.

Sizes are compared before a byte is read. Bodies go into a fixed number of reusable buffers; when all are in use,
further uploads wait at their sockets. The checksum, the finite check and the norms are taken while the bytes arrive and
are warm, so that folding is a single pass.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics.codec import Buffer, Codec
from gruppetto.numerics.fragments import FragmentSpec
from gruppetto.numerics.inspection import ChunkInspector, Inspection
from gruppetto.runtime.wire import checksum, octets

__all__ = ["Body", "Intake", "Upload", "check_whole"]

INSPECT_BYTES = 1 << 18
"""What has arrived is looked at in strides of this size, which stays in the cache."""


class Body:
    """A whole, checked body in a borrowed buffer, as ``codec`` writes it. Give it back with ``release``."""

    def __init__(
        self, payload: memoryview, codec: Codec, inspection: Inspection, give_back: Callable[[], None]
    ) -> None:
        self.payload, self.codec, self.inspection = payload, codec, inspection
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """The bytes are not needed any more. Twice does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class Upload:
    """A body on its way into ``buffer``, which is exactly as long as the body has to be.

    A context manager: a body that is not whole when it ends is given up, and the buffer is free again.
    """

    def __init__(
        self,
        spec: FragmentSpec,
        codec: Codec,
        crc: int | None,
        buffer: NDArray[np.uint8],
        give_back: Callable[[], None],
    ) -> None:
        assert len(buffer) == codec.payload_bytes(spec.numel)
        self.buffer, self._codec, self._give_back = buffer, codec, give_back
        self._inspector = ChunkInspector(spec, codec)
        self._expected_crc, self._crc = crc, 0
        self._arrived = self._inspected = 0
        self._over = self._kept = False

    @property
    def missing_bytes(self) -> int:
        return len(self.buffer) - self._arrived

    @property
    def arrived(self) -> int:
        """Bytes that are here."""
        return self._arrived

    @property
    def crc(self) -> int:
        """Of what is here."""
        return self._crc

    def room(self) -> memoryview:
        """The place of the next bytes, for whoever can put them there himself; then say :meth:`wrote`."""
        return self.buffer.data[self._arrived :]

    def wrote(self, num_bytes: int) -> None:
        """So many bytes are in their place."""
        self._crc = checksum(self.buffer[self._arrived : self._arrived + num_bytes], self._crc)
        self._arrived += num_bytes
        self._inspect_up_to(self._arrived // INSPECT_BYTES * INSPECT_BYTES)

    def write(self, chunk: Buffer) -> None:
        """Take the next bytes. Raises :class:`ProtocolError` if there are more than there should be."""
        data = octets(chunk)
        if len(data) > self.missing_bytes:
            raise ProtocolError(f"the body is longer than the {len(self.buffer)} bytes it should have")
        self.room()[: len(data)] = data
        self.wrote(len(data))

    def expect(self, crc: int) -> None:
        """The checksum that the whole is to have, where it came behind the body."""
        self._expected_crc = crc

    def finish(self) -> Body:
        """The body, if it is whole. Raises :class:`ProtocolError` if it is cut short or damaged."""
        check_whole(self.missing_bytes, self._crc, self._expected_crc)
        self._inspect_up_to(self._arrived)
        self._over = True
        return Body(self.buffer.data, self._codec, self._inspector.finish(), self._give_back)

    def fill(self) -> Body:
        """The body, when others have written all of the buffer and checked what they wrote."""
        self._inspect_up_to(len(self.buffer))
        self._over = True
        return Body(self.buffer.data, self._codec, self._inspector.finish(), self._give_back)

    def give_up(self) -> None:
        """The body will not be whole; the buffer is free again. Harmless when it is over already."""
        if not self._over:
            self._over = True
            self._give_back()

    def keep(self) -> None:
        """Leaving the context does not give it up this time: it goes on later."""
        self._kept = True

    def _inspect_up_to(self, stop: int) -> None:
        """In strides of one size: wherever the network cut the body, the norms are the same to the last bit."""
        for start in range(self._inspected, stop, INSPECT_BYTES):
            self._inspector.update(self.buffer[start : min(start + INSPECT_BYTES, stop)])
        self._inspected = stop

    def __enter__(self) -> Self:
        self._kept = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._kept:
            self.give_up()


class Intake:
    """Room for a fixed number of contributions, each as large as the largest fragment."""

    def __init__(self, codec: Codec, largest_numel: int, num_bodies: int) -> None:
        self.codec = codec
        self.on_room: Callable[[], None] = _nobody_waits
        """Called when a buffer has become free."""
        self._buffer_bytes = codec.payload_bytes(largest_numel)
        self._free: list[NDArray[np.uint8]] = []
        self._unmade = num_bodies

    def has_room(self) -> bool:
        return bool(self._free) or self._unmade > 0

    def check(self, spec: FragmentSpec, length: int) -> None:
        """Raises :class:`ProtocolError` if ``length`` bytes cannot be this fragment."""
        expected = self.codec.payload_bytes(spec.numel)
        if length != expected:
            raise ProtocolError(
                f"a {self.codec.name} body of fragment {spec.index} has {expected} bytes, {length} are announced"
            )

    def open(self, spec: FragmentSpec, length: int, crc: int | None = 0) -> Upload:
        """Begin an upload of ``length`` bytes, while there is room; its checksum, if it is known. Raises
        :class:`ProtocolError` for a wrong size."""
        self.check(spec, length)
        assert self.has_room()
        if self._free:
            buffer = self._free.pop()
        else:
            self._unmade -= 1
            buffer = np.empty(self._buffer_bytes, np.uint8)

        def give_back() -> None:
            self._free.append(buffer)
            self.on_room()

        return Upload(spec, self.codec, crc, buffer[:length], give_back)


def check_whole(missing_bytes: int, crc: int, expected: int | None) -> None:
    """Raises :class:`ProtocolError` for a body that is cut short, damaged, or of which nobody said what it is to be."""
    if missing_bytes:
        raise ProtocolError(f"the body ends {missing_bytes} bytes too early")
    if crc != expected:
        instead = "and nobody said which" if expected is None else f"instead of {expected:08x}"
        raise ProtocolError(f"the body has checksum {crc:08x} {instead}")


def _nobody_waits() -> None:
    pass
