"""The compiled loops that turn words into float32 values, one body for each kind of words.

A body says what a stretch of at most :data:`~gruppetto.numerics.words.BLOCK` elements is. Every inner loop starts at 0
on a slice: that is the shape the compiler turns into vector instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from gruppetto.numerics.compiling import BODIES, kernel
from gruppetto.numerics.words import GROUP, HALF, SCALE_BYTES, Fp4, Int4, Int8

__all__ = ["half_of", "is_kind", "scale_of", "values"]


def is_kind(words: Any, kind: type) -> bool:
    """Of numba's type of some words, at the time of compiling."""
    return getattr(words, "instance_class", None) is kind


def values(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    """The float32 values of elements ``lo`` to ``hi``, at most ``BLOCK``; ``scratch`` may hold them."""
    raise NotImplementedError("compiled code only")


@overload(values, jit_options=BODIES)  # type: ignore[untyped-decorator]
def _values_for(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    if is_kind(words, Int8):
        return _values_int8
    if is_kind(words, Int4) or is_kind(words, Fp4):
        return _values_of_halves
    return _values_float32 if words.dtype == types.float32 else _values_bfloat16


def _values_float32(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    return words[lo:hi]


def _values_bfloat16(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    source, bits = words[lo:hi], scratch.view(np.uint32)
    for i in range(source.shape[0]):
        bits[i] = np.uint32(source[i]) << np.uint32(16)
    return scratch[: source.shape[0]]


def _values_int8(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        start, stop, scale = max(lo, at), min(hi, at + GROUP), scale_of(row)
        codes, out = row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at], scratch[start - lo : stop - lo]
        for i in range(out.shape[0]):
            out[i] = scale * np.float32(np.int8(codes[i]))
    return scratch[: hi - lo]


def _values_of_halves(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        scale, codes = scale_of(row), row[SCALE_BYTES:]
        if lo <= at and at + GROUP <= hi:
            low, high = scratch[at - lo : at - lo + HALF], scratch[at - lo + HALF : at - lo + GROUP]
            for i in range(HALF):
                low[i] = scale * _meaning(words, codes[i] & np.uint8(15))
            for i in range(HALF):
                high[i] = scale * _meaning(words, codes[i] >> np.uint8(4))
        else:  # a block that is cut, at the seam of two tensors
            for j in range(max(lo, at), min(hi, at + GROUP)):
                scratch[j - lo] = scale * _meaning(words, half_of(codes, j - at))
    return scratch[: hi - lo]


def _meaning(words: Any, code: Any) -> Any:
    """What four bits say, but for the scale."""
    raise NotImplementedError("compiled code only")


@overload(_meaning, jit_options=BODIES)  # type: ignore[untyped-decorator]
def _meaning_for(words: Any, code: Any) -> Any:
    return _meaning_int4 if is_kind(words, Int4) else _meaning_fp4


def _meaning_int4(words: Any, code: Any) -> Any:
    return np.float32(np.int32(code ^ np.uint8(8)) - np.int32(8))


def _meaning_fp4(words: Any, code: Any) -> Any:
    # A power of two is its exponent, so a float32 is put together rather than looked up. Exponent 0 is zero itself.
    bits = (np.uint32(code & np.uint8(8)) << np.uint32(28)) | (np.uint32(code & np.uint8(7)) << np.uint32(23))
    return np.float32(np.uint32(bits).view(np.float32) * np.float32(2.0**120))


@kernel
def half_of(codes: Any, j: int) -> Any:
    """Code ``j`` of a block of them in two halves."""
    return codes[j] & np.uint8(15) if j < HALF else codes[j - HALF] >> np.uint8(4)


@kernel
def scale_of(row: Any) -> Any:
    """The scale in front of a block."""
    bits = np.uint32((np.uint32(row[0]) | (np.uint32(row[1]) << np.uint32(8))) << np.uint32(16))
    return bits.view(np.float32)
