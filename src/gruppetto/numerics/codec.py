"""How float32 values become bytes on the wire and back.

A codec is one row of :data:`CODECS`. Its payload is a run of words in little-endian order; how a word turns
into float32 is compiled (:mod:`gruppetto.numerics.kernels`), so that norms, folding and differences read
and write payloads directly. To add one, give it a word type, a branch in the kernels, and a row here: the
tests run over rows.

>>> import numpy as np
>>> payload = CODECS["bf16"].encode(np.float32([1.0, 1e-3, float("inf")]))
>>> payload.nbytes, CODECS["bf16"].decode(payload, 3).round(4)
(6, array([1.   , 0.001,   inf], dtype=float32))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics import kernels
from gruppetto.numerics.kernels import Float32

__all__ = ["CODECS", "Buffer", "Codec", "encode_difference"]

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]
"""Anything whose bytes can be looked at without a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One way to write a flat vector.

    ``word`` is the numpy type of one payload word, one element each. ``relative_error`` bounds |decoded −
    x| / |x| for normal numbers within the range of the encoding; NaN and infinity always survive.
    """

    name: str
    word: str
    relative_error: float

    @property
    def word_bytes(self) -> int:
        return np.dtype(self.word).itemsize

    def payload_bytes(self, numel: int) -> int:
        """The exact length of the payload of ``numel`` values."""
        return numel * self.word_bytes

    def encode(self, values: Float32) -> NDArray[np.uint8]:
        """The payload of values of any shape, row by row."""
        flat = _flat(values)
        words = np.empty(flat.shape, self.word)
        kernels.encode(flat, words)
        return words.view(np.uint8)

    def decode(self, payload: Buffer, numel: int, out: Float32 | None = None) -> Float32:
        """The ``numel`` values that a payload holds, in ``out`` if given. Raises as :meth:`words` does."""
        values = np.empty(numel, np.float32) if out is None else out
        assert values.shape == (numel,)
        kernels.decode(self.words(payload, numel), values)
        return values

    def words(self, payload: Buffer, numel: int) -> NDArray[Any]:
        """A read-only view of the payload as ``numel`` words, copied only if it lies at an odd address.

        Raises :class:`ProtocolError` if the payload does not have exactly the right length.
        """
        raw = np.frombuffer(payload, np.uint8)
        if raw.nbytes != self.payload_bytes(numel):
            wanted = self.payload_bytes(numel)
            raise ProtocolError(f"{numel} values in {self.name} are {wanted} bytes, but {raw.nbytes} came")
        words = raw.view(self.word)
        return kernels.read_only(words if words.flags.aligned else words.copy())


CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec(name="fp32", word="<f4", relative_error=0.0),
        Codec(name="bf16", word="<u2", relative_error=2.0**-8),
    )
}


def encode_difference(
    base: Float32, theta: Float32, codec: Codec, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """The payload of base − θ, the outer gradient, in one pass; in ``out`` if given.

    Both have the same shape, whatever it is. The difference is taken in float32 and then encoded.
    """
    minuend, subtrahend = _flat(base), _flat(theta)
    assert minuend.shape == subtrahend.shape
    payload = np.empty(codec.payload_bytes(minuend.size), np.uint8) if out is None else out
    assert payload.shape == (codec.payload_bytes(minuend.size),)
    kernels.encode_difference(minuend, subtrahend, payload.view(codec.word))
    return payload


def _flat(values: Float32) -> Float32:
    assert values.dtype == np.float32
    return kernels.read_only(np.ascontiguousarray(values).reshape(-1))
