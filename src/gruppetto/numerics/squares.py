"""The compiled loops under every norm: sums of squares of a stretch of words, one body for each kind.

A sum is finite exactly if every value is: float64 cannot overflow on squares of float32. One number is therefore both
the norm and the finite check. The squares of a block of codes are whole numbers times the square of the scale, and add
up exactly: nothing is decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload

from gruppetto.numerics.compiling import BODIES, kernel, reduction
from gruppetto.numerics.reading import is_kind, scale_of, values
from gruppetto.numerics.words import GROUP, HALF, LARGEST_INT4, LARGEST_INT8, SCALE_BYTES, Fp4, Int4, Int8

__all__ = ["block_squares", "squares"]


def squares(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    """The sum of the squares of elements ``lo`` to ``hi``, at most ``BLOCK``; not finite if one of them is not."""
    raise NotImplementedError("compiled code only")


@overload(squares, jit_options=BODIES)  # type: ignore[untyped-decorator]
def _squares_for(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    if is_kind(words, Int8):
        return _squares_int8
    return _squares_of_halves if is_kind(words, Int4) or is_kind(words, Fp4) else _squares_plain


@reduction
def block_squares(of: Any) -> float:
    """The sum of the squares of float32 values, in float64."""
    total = 0.0
    for i in range(of.shape[0]):
        x = np.float64(of[i])
        total += x * x
    return total


def _squares_plain(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    return block_squares(values(words, lo, hi, scratch))


def _squares_int8(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    total = 0.0
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, start, stop = words.blocks[g], max(lo, g * GROUP), min(hi, g * GROUP + GROUP)
        codes, found = row[SCALE_BYTES + start - g * GROUP : SCALE_BYTES + stop - g * GROUP], np.int32(0)
        for i in range(codes.shape[0]):
            code = np.int32(np.int8(codes[i]))
            found = np.int32(found + code * code)
        total += _scaled(row, LARGEST_INT8, np.float64(found))
    return total


def _squares_of_halves(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    total, (unit, most) = 0.0, _measure(words)
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        start, stop = max(lo, at), max(lo, min(hi, at + HALF))
        found = _half(words, row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at], np.uint8(0))
        start, stop = max(lo, at + HALF), max(at + HALF, min(hi, at + GROUP))
        found += _half(words, row[SCALE_BYTES + start - at - HALF : SCALE_BYTES + stop - at - HALF], np.uint8(4))
        total += _scaled(row, most, np.float64(found) * unit)
    return total


@kernel
def _half(words: Any, codes: Any, shift: Any) -> Any:
    """The sum over the low halves of these bytes, ``shift`` 0, or the high ones, 4."""
    found = np.int32(0)
    for i in range(codes.shape[0]):
        found = np.int32(found + _square(words, (codes[i] >> shift) & np.uint8(15)))
    return found


def _square(words: Any, code: Any) -> Any:
    """The square of what four bits say, a whole number of units."""
    raise NotImplementedError("compiled code only")


@overload(_square, jit_options=BODIES)  # type: ignore[untyped-decorator]
def _square_for(words: Any, code: Any) -> Any:
    return _square_int4 if is_kind(words, Int4) else _square_fp4


def _square_int4(words: Any, code: Any) -> Any:
    signed = np.int32(code ^ np.uint8(8)) - np.int32(8)
    return np.int32(signed * signed)


def _square_fp4(words: Any, code: Any) -> Any:
    return np.int32((np.int32(1) << (np.int32(2) * np.int32(code & np.uint8(7)))) >> np.int32(2))


def _measure(words: Any) -> Any:
    """The unit of the squares, and the scale from which on a block counts as not finite."""
    raise NotImplementedError("compiled code only")


@overload(_measure, jit_options=BODIES)  # type: ignore[untyped-decorator]
def _measure_for(words: Any) -> Any:
    return _measure_int4 if is_kind(words, Int4) else _measure_fp4


def _measure_int4(words: Any) -> Any:
    return 1.0, LARGEST_INT4


def _measure_fp4(words: Any) -> Any:
    return 2.0**-12, np.inf


@kernel
def _scaled(row: Any, most: float, found: float) -> float:
    scale = np.float64(scale_of(row))
    # Not (scale >= most): NaN has to come out of this too.
    return scale * scale * found if abs(scale) < most else np.inf
