"""The compiled loops that turn float32 values into words, one body for each kind of words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from gruppetto.numerics.compiling import BODIES, kernel
from gruppetto.numerics.reading import is_kind
from gruppetto.numerics.words import GROUP, HALF, LEAST, SCALE_BYTES, Fp4, Int4, Int8

__all__ = ["put"]


def put(of: Any, words: Any, at: int) -> Any:
    """Write float32 values, at most ``BLOCK``, as elements from ``at`` on, where a block begins."""
    raise NotImplementedError("compiled code only")


@overload(put, jit_options=BODIES)  # type: ignore[untyped-decorator]
def _put_for(of: Any, words: Any, at: int) -> Any:
    if is_kind(words, Int8):
        return _put_int8
    if is_kind(words, Int4):
        return _put_int4
    if is_kind(words, Fp4):
        return _put_fp4
    return _put_float32 if words.dtype == types.float32 else _put_bfloat16


def _put_float32(of: Any, words: Any, at: int) -> Any:
    for i in range(of.shape[0]):
        words[at + i] = of[i]


def _put_bfloat16(of: Any, words: Any, at: int) -> Any:
    # Round to the nearest, ties to even. Rounding could carry a NaN into infinity: it is cut and kept quiet.
    bits, out = of.view(np.uint32), words[at : at + of.shape[0]]
    for i in range(bits.shape[0]):
        b = bits[i]
        high = b >> np.uint32(16)
        rounded = (b + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16)
        is_nan = (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16(high | np.uint32(0x40)) if is_nan else np.uint16(rounded)


def _put_int8(of: Any, words: Any, at: int) -> Any:
    padded = np.empty(GROUP, np.float32)
    for start in range(0, of.shape[0], GROUP):
        row, group = words.blocks[(at + start) // GROUP], _group(of, start, padded)
        inverse, out = _put_scale(group, np.float32(127), row), row[SCALE_BYTES:]
        if inverse == 0:
            out[:] = 0
            continue
        for i in range(GROUP):
            out[i] = np.uint8(np.int32(np.rint(group[i] * inverse)))


def _put_int4(of: Any, words: Any, at: int) -> Any:
    padded = np.empty(GROUP, np.float32)
    for start in range(0, of.shape[0], GROUP):
        row, group = words.blocks[(at + start) // GROUP], _group(of, start, padded)
        inverse, out = _put_scale(group, np.float32(7), row), row[SCALE_BYTES:]
        if inverse == 0:
            out[:] = 0
            continue
        low, high = group[:HALF], group[HALF:]
        for i in range(HALF):
            first, second = np.int32(np.rint(low[i] * inverse)), np.int32(np.rint(high[i] * inverse))
            out[i] = np.uint8((first & 15) | (second << 4))


def _put_fp4(of: Any, words: Any, at: int) -> Any:
    padded, scaled = np.empty(GROUP, np.float32), np.empty(GROUP, np.float32)
    codes = scaled.view(np.uint32)
    for start in range(0, of.shape[0], GROUP):
        row, group = words.blocks[(at + start) // GROUP], _group(of, start, padded)
        inverse, out = _put_scale(group, np.float32(1), row), row[SCALE_BYTES:]
        if inverse == 0:
            out[:] = 0
            continue
        for i in range(GROUP):
            scaled[i] = group[i] * inverse
        for i in range(GROUP):
            # To the nearest power of two: from 1.5 times a power on to the next. Below 2⁻⁷ the nearest is zero.
            b = codes[i] & np.uint32(0x7FFFFFFF)
            exponent = np.int32((b + np.uint32(0x00400000)) >> np.uint32(23)) - np.int32(120)
            least = np.int32(1) if b >= np.uint32(120 << 23) else np.int32(0)
            m = np.uint32(min(max(exponent, least), np.int32(7)))
            codes[i] = m | ((codes[i] >> np.uint32(28)) & np.uint32(8))
        low, high = codes[:HALF], codes[HALF:]
        for i in range(HALF):
            out[i] = np.uint8(low[i] | (high[i] << np.uint32(4)))


@kernel
def _group(of: Any, start: int, padded: Any) -> Any:
    """One whole group; the last one is filled up with zeros."""
    if of.shape[0] - start >= GROUP:
        return of[start : start + GROUP]
    rest = of[start:]
    padded[:] = np.float32(0)
    for i in range(rest.shape[0]):
        padded[i] = rest[i]
    return padded[:GROUP]


@kernel
def _put_scale(group: Any, levels: Any, row: Any) -> Any:
    """Write the scale of a group; returns its reciprocal, 0 where every code is to be zero."""
    bits, most = group.view(np.uint32), np.uint32(0)
    for i in range(GROUP):
        most = max(most, bits[i] & np.uint32(0x7FFFFFFF))
    scale, inverse = np.uint32(0), np.float32(0)
    if most >= np.uint32(0x7F800000):
        scale = np.uint32(0x7FC00000)
    elif most >= np.uint32(LEAST):
        exact = np.float32(np.uint32(most).view(np.float32) / levels)
        scale = np.uint32((exact.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000))
        inverse = np.float32(np.float32(1) / scale.view(np.float32))
    row[0], row[1] = np.uint8((scale >> np.uint32(16)) & np.uint32(0xFF)), np.uint8(scale >> np.uint32(24))
    return inverse
