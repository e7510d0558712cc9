"""How float32 values become bytes on the wire and back.

A codec is one row of :data:`CODECS`. Its payload is a run of words in little-endian order: a word is one element, or a
block of them behind a scale (:mod:`gruppetto.numerics.words` draws them). How words turn into float32 is compiled, so
that norms, folding and differences read and write payloads directly. To add one, give it a type of words there,
bodies in :mod:`gruppetto.numerics.reading`, :mod:`~gruppetto.numerics.squares` and
:mod:`~gruppetto.numerics.writing`, and a row here: the tests run over rows.

Codecs of blocks lose enough to be worth remembering: :func:`encode_with_rest` gives what a payload leaves unsaid, for
the next one to say (error feedback). Blocks know nothing of tensors: at the seam of two, both share a scale.

>>> import numpy as np
>>> payload = CODECS["bf16"].encode(np.float32([1.0, 1e-3, float("inf")]))
>>> payload.nbytes, CODECS["bf16"].decode(payload, 3).round(4)
(6, array([1.   , 0.001,   inf], dtype=float32))
>>> payload = CODECS["int4"].encode(np.float32([7.0, -2.4, 0.2]))
>>> payload.nbytes, CODECS["int4"].decode(payload, 3)
(66, array([ 7., -2.,  0.], dtype=float32))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics import kernels
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.words import GROUP, HALF, SCALE_BYTES, Fp4, Int4, Int8

__all__ = ["CASTS", "CODECS", "Buffer", "Codec", "encode_difference", "encode_with_rest"]

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]
"""Anything whose bytes can be looked at without a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One way to write a flat vector.

    ``word_bytes`` hold ``block_numel`` elements, the last of them perhaps fewer; ``to_words`` sees bytes as words.
    ``relative_error`` bounds |decoded − x| by the largest magnitude of x's block (in the normal range, above 2⁻¹⁰⁰ for
    blocks). Where x is NaN or infinite, its whole block is not finite. ``keeps_rest``: an encoding of which what is
    left unsaid has to be said later.
    """

    name: str
    word_bytes: int
    relative_error: float
    to_words: Callable[[NDArray[np.uint8]], Any]
    block_numel: int = 1
    keeps_rest: bool = False

    def payload_bytes(self, numel: int) -> int:
        """The exact length of the payload of ``numel`` values, scales included."""
        return -(-numel // self.block_numel) * self.word_bytes

    @property
    def bits(self) -> float:
        """Bits of one element of a long vector, scales included."""
        return 8 * self.word_bytes / self.block_numel

    def encode(self, values: Float32, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """The payload of values of any shape, row by row; in ``out`` if given."""
        flat = _flat(values)
        payload = np.empty(self.payload_bytes(flat.size), np.uint8) if out is None else out
        assert payload.size == self.payload_bytes(flat.size)
        kernels.encode(flat, self.to_words(payload))
        return payload

    def decode(self, payload: Buffer, numel: int, out: Float32 | None = None) -> Float32:
        """The ``numel`` values that a payload holds, in ``out`` if given. Raises as :meth:`words` does."""
        values = np.empty(numel, np.float32) if out is None else out
        assert values.shape == (numel,)
        kernels.decode(self.words(payload, numel), 0, values)
        return values

    def words(self, payload: Buffer, numel: int) -> Any:
        """A read-only view of the payload of ``numel`` values as words, copied only if it lies at an odd address.

        Raises :class:`ProtocolError` if the payload does not have exactly the right length.
        """
        raw = np.frombuffer(payload, np.uint8)
        if raw.nbytes != self.payload_bytes(numel):
            wanted = self.payload_bytes(numel)
            raise ProtocolError(f"{numel} values in {self.name} are {wanted} bytes, but {raw.nbytes} came")
        raw.flags.writeable = False  # the one kind of array that kernels are compiled for
        words = self.to_words(raw)
        if self.block_numel == 1 and not words.flags.aligned:
            words = self.to_words(kernels.read_only(raw.copy()))
        return words


CASTS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec(name="fp32", word_bytes=4, relative_error=0.0, to_words=lambda raw: raw.view("<f4")),
        Codec(name="bf16", word_bytes=2, relative_error=2.0**-8, to_words=lambda raw: raw.view("<u2")),
    )
}
"""Every element for itself. What a cast has lost is not worth remembering, and values themselves can travel so."""

_COARSER = 1 + 2.0**-7
"""A scale rounded up to bfloat16 is larger by at most this factor."""


def _of_blocks(name: str, kind: Callable[[NDArray[np.uint8]], Any], code_bytes: int, steps: int) -> Codec:
    """Blocks behind a scale, as one of the types of words; an error is at most the ``steps``-th part of the scale's
    range."""
    word_bytes = SCALE_BYTES + code_bytes
    return Codec(
        name=name,
        word_bytes=word_bytes,
        block_numel=GROUP,
        relative_error=_COARSER / steps,
        to_words=lambda raw: kind(raw.reshape(-1, word_bytes)),
        keeps_rest=True,
    )


CODECS: dict[str, Codec] = CASTS | {
    codec.name: codec
    for codec in (
        _of_blocks("int8", Int8, GROUP, 2 * 127),
        _of_blocks("int4", Int4, HALF, 2 * 7),
        _of_blocks("fp4-e3m0", Fp4, HALF, 4),
    )
}
"""All of them; those of blocks are for differences only."""


def encode_difference(
    base: Float32, theta: Float32, codec: Codec, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """The payload of base − θ, the outer gradient, in one pass; in ``out`` if given.

    Both have the same shape, whatever it is. The difference is taken in float32 and then encoded.
    """
    minuend, subtrahend, payload = _operands(base, theta, codec, out)
    kernels.encode_difference(minuend, subtrahend, codec.to_words(payload))
    return payload


def encode_with_rest(
    base: Float32,
    theta: Float32,
    rest: Float32 | None,
    codec: Codec,
    left: Float32,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """The payload of (base − θ) + ``rest``, and in ``left`` what it leaves unsaid of that, exactly.

    ``rest`` is what was left by the last payload that counted; None: nothing. ``left`` is another vector, [numel].
    """
    assert codec.keeps_rest
    minuend, subtrahend, payload = _operands(base, theta, codec, out)
    before = np.empty(0, np.float32) if rest is None else rest
    assert before.size in (0, minuend.size) and left.shape == (minuend.size,) and left.dtype == np.float32
    kernels.encode_with_rest(minuend, subtrahend, _flat(before), codec.to_words(payload), left)
    return payload


def _operands(
    base: Float32, theta: Float32, codec: Codec, out: NDArray[np.uint8] | None
) -> tuple[Float32, Float32, NDArray[np.uint8]]:
    minuend, subtrahend = _flat(base), _flat(theta)
    assert minuend.shape == subtrahend.shape
    payload = np.empty(codec.payload_bytes(minuend.size), np.uint8) if out is None else out
    assert payload.shape == (codec.payload_bytes(minuend.size),)
    return minuend, subtrahend, payload


def _flat(values: Float32) -> Float32:
    assert values.dtype == np.float32
    return kernels.read_only(np.ascontiguousarray(values).reshape(-1))
