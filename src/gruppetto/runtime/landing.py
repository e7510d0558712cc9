"""Where a published fragment comes down, and what is there of it when its download breaks off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics.codec import Codec
from gruppetto.protocol.units import Version
from gruppetto.runtime.headers import HAVE_HEADER
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.wire import checksum

__all__ = ["Landing"]


class Landing:
    """A sink for one body of ``into.values.size`` elements: float32 arrives in the lease itself. It may be used for
    several tries; the caller keeps its hold on the lease as long. A step (:mod:`~gruppetto.runtime.steps`) comes in one
    try or not at all: the next one asks for the whole value."""

    def __init__(self, into: Lease) -> None:
        self._into = into
        self._version, self._codec = Version(-1), ""
        self._body: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._decode: Codec | None = None
        self._is_step = False
        self.at = self.crc = 0
        """Bytes that are here, and their checksum."""

    @property
    def missing_bytes(self) -> int:
        return self._body.size - self.at

    def room(self) -> memoryview:
        return self._body.data[self.at :]

    def wrote(self, num_bytes: int) -> None:
        self.crc = checksum(self._body[self.at : self.at + num_bytes], self.crc)
        self.at += num_bytes

    @property
    def goes_on(self) -> bool:
        """Something is here of which the rest may be asked for."""
        return self.at > 0 and not self._is_step

    @property
    def body(self) -> NDArray[np.uint8]:
        """What came, as it came."""
        return self._body

    def said(self) -> dict[str, str]:
        """What is here, for whoever is to send the rest."""
        return {HAVE_HEADER: f"{self._version}:{self.at}"} if self.goes_on else {}

    def begin(self, version: Version, codec: Codec, offset: int, *, is_step: bool = False) -> None:
        """The body of this version comes now, without its first ``offset`` bytes. Raises :class:`ProtocolError` if
        these are not the ones that are here."""
        if offset:
            here = self.at, self._version, self._codec
            if is_step or not self.goes_on or (offset, version, codec.name) != here:
                self.forget()
                raise ProtocolError(f"the rest of another body came: version {version} from byte {offset} on")
            return
        self.forget()
        numel = self._into.values.size
        self._version, self._codec, self._is_step = version, codec.name, is_step
        plain = codec.name == "fp32" and not is_step
        self._decode = None if plain else codec
        self._body = self._into.values.view(np.uint8) if plain else np.empty(codec.payload_bytes(numel), np.uint8)

    def forget(self) -> None:
        """What is here is worth nothing."""
        self.at = self.crc = 0

    def finish(self) -> None:
        """It is whole, and right: put the values where they belong."""
        if self._decode is not None:
            self._decode.decode(self._body, self._into.values.size, self._into.values)
        self.forget()
