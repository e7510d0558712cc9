"""What payload words mean: one float32, one bfloat16, or a block of 128 small codes behind a scale.

Which it is, the type of the words says: float32 is itself, uint16 is bfloat16, and the blocks of :class:`Int8`,
:class:`Int4` and :class:`Fp4` are rows of bytes::

    Int8  │ scale, bfloat16 │ 128 codes of 8 bits, −127 … 127                                      130 bytes
    Int4  │ scale, bfloat16 │ 64 bytes: codes j in the low and j + 64 in the high halves, −7 … 7    66 bytes
    Fp4   │ scale, bfloat16 │ the same, of a sign and three bits of exponent: 0, ±2⁻⁶ … ±1          66 bytes

A value is scale · code. The scale is the largest magnitude of its block, by the largest code, **rounded up** to
bfloat16, so that no code is ever cut. Eight bits of a scale times seven of a code fit into float32: decoding is exact,
on every machine, and so is the difference between a value and what became of it (it is at most half of either). The
squares of a block add up to a whole number times the square of the scale: a norm needs no decoding.

A float32 scale would cost two bytes more a block, an eighth of a bit an element, for less than 1 % finer codes.

A block that holds NaN or infinity has a scale of NaN. One whose largest magnitude is below 2⁻¹⁰⁰ is all zero. A scale
so large that a code could overflow float32 is none that an encoder writes: its block counts as not finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from gruppetto.numerics.compiled import OVERLOADED, kernel, reduction

__all__ = [
    "BLOCK",
    "GROUP",
    "HALF",
    "SCALE_BYTES",
    "Fp4",
    "Int4",
    "Int8",
    "block_squares",
    "encode",
    "squares",
    "values",
]

BLOCK = 1024
"""Elements in a stride of a loop: 4 KiB, which stay in the first-level cache. A multiple of :data:`GROUP`."""
GROUP = 128
"""Elements behind one scale."""
HALF = GROUP // 2
SCALE_BYTES = 2
_EXPONENT, _MAGNITUDE = 0x7F800000, 0x7FFFFFFF
_LEAST = 0x0D800000
"""The bits of 2⁻¹⁰⁰: below, a scale might have no reciprocal."""
_MOST_INT8, _MOST_INT4, _MOST_FP4 = 2.0**121, 2.0**125, float("inf")
"""Scales from here on could overflow with the largest code that eight or four bits can say."""


class Int8(NamedTuple):
    """uint8 [blocks, 130]."""

    blocks: NDArray[np.uint8]


class Int4(NamedTuple):
    """uint8 [blocks, 66]."""

    blocks: NDArray[np.uint8]


class Fp4(NamedTuple):
    """uint8 [blocks, 66]."""

    blocks: NDArray[np.uint8]


def _is(words: Any, kind: type) -> bool:
    return getattr(words, "instance_class", None) is kind


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def values(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    """The float32 values of elements ``lo`` to ``hi``, at most :data:`BLOCK`; ``scratch`` may hold them."""
    raise NotImplementedError("compiled code only")


@overload(values, jit_options=OVERLOADED)  # type: ignore[untyped-decorator]
def _values_for(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    if _is(words, Int8):
        return _values_int8
    if _is(words, Int4):
        return _values_int4
    if _is(words, Fp4):
        return _values_fp4
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
        row, start, stop = words.blocks[g], max(lo, g * GROUP), min(hi, g * GROUP + GROUP)
        scale = _scale(row)
        codes, out = (
            row[SCALE_BYTES + start - g * GROUP : SCALE_BYTES + stop - g * GROUP],
            scratch[start - lo : stop - lo],
        )
        for i in range(out.shape[0]):
            out[i] = scale * np.float32(np.int8(codes[i]))
    return scratch[: hi - lo]


def _values_int4(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        scale = _scale(row)
        start, stop = max(lo, at), max(lo, min(hi, at + HALF))
        codes, out = row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at], scratch[start - lo : stop - lo]
        for i in range(out.shape[0]):
            out[i] = scale * np.float32(np.int8(codes[i] << np.uint8(4)) >> np.int8(4))
        start, stop = max(lo, at + HALF), max(at + HALF, min(hi, at + GROUP))
        codes = row[SCALE_BYTES + start - at - HALF : SCALE_BYTES + stop - at - HALF]
        out = scratch[start - lo : stop - lo]
        for i in range(out.shape[0]):
            out[i] = scale * np.float32(np.int8(codes[i]) >> np.int8(4))
    return scratch[: hi - lo]


def _values_fp4(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        scale = _scale(row)
        start, stop = max(lo, at), max(lo, min(hi, at + HALF))
        _powers(row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at], 0, scale, scratch[start - lo : stop - lo])
        start, stop = max(lo, at + HALF), max(at + HALF, min(hi, at + GROUP))
        codes = row[SCALE_BYTES + start - at - HALF : SCALE_BYTES + stop - at - HALF]
        _powers(codes, 4, scale, scratch[start - lo : stop - lo])
    return scratch[: hi - lo]


@kernel
def _powers(codes: Any, shift: int, scale: Any, out: Any) -> None:
    """out ← scale · ±2**(m − 7), or scale · 0, of the four bits of each code that begin at ``shift``."""
    bits = out.view(np.uint32)
    for i in range(out.shape[0]):
        code = np.uint32(codes[i]) >> np.uint32(shift)
        m = code & np.uint32(7)
        power = ((m + np.uint32(120)) << np.uint32(23)) | ((code & np.uint32(8)) << np.uint32(28))
        bits[i] = power if m > 0 else np.uint32(0)
        out[i] = scale * out[i]


@kernel
def _scale(row: Any) -> Any:
    bits = np.uint32((np.uint32(row[0]) | (np.uint32(row[1]) << np.uint32(8))) << np.uint32(16))
    return bits.view(np.float32)


# ── squared norms ────────────────────────────────────────────────────────────────────────────────────────────────────


@reduction
def block_squares(of: Any) -> float:
    """The sum of the squares of float32 values, in float64."""
    total = 0.0
    for i in range(of.shape[0]):
        x = np.float64(of[i])
        total += x * x
    return total


def squares(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    """The sum of the squares of elements ``lo`` to ``hi``, at most :data:`BLOCK`; not finite if one of them is not."""
    raise NotImplementedError("compiled code only")


@overload(squares, jit_options=OVERLOADED)  # type: ignore[untyped-decorator]
def _squares_for(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    if _is(words, Int8):
        return _squares_int8
    if _is(words, Int4):
        return _squares_int4
    return _squares_fp4 if _is(words, Fp4) else _squares_plain


def _squares_plain(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    return block_squares(values(words, lo, hi, scratch))


def _squares_int8(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    total = 0.0
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, start, stop = words.blocks[g], max(lo, g * GROUP), min(hi, g * GROUP + GROUP)
        codes, found = row[SCALE_BYTES + start - g * GROUP : SCALE_BYTES + stop - g * GROUP], np.int32(0)
        for i in range(codes.shape[0]):
            code = np.int32(np.int8(codes[i]))
            found += code * code
        total += _scaled(row, _MOST_INT8, np.float64(found))
    return total


def _squares_int4(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    total = 0.0
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at, found = words.blocks[g], g * GROUP, np.int32(0)
        start, stop = max(lo, at), max(lo, min(hi, at + HALF))
        codes = row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at]
        for i in range(codes.shape[0]):
            code = np.int32(np.int8(codes[i] << np.uint8(4)) >> np.int8(4))
            found += code * code
        start, stop = max(lo, at + HALF), max(at + HALF, min(hi, at + GROUP))
        codes = row[SCALE_BYTES + start - at - HALF : SCALE_BYTES + stop - at - HALF]
        for i in range(codes.shape[0]):
            code = np.int32(np.int8(codes[i]) >> np.int8(4))
            found += code * code
        total += _scaled(row, _MOST_INT4, np.float64(found))
    return total


def _squares_fp4(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    total = 0.0
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        start, stop = max(lo, at), max(lo, min(hi, at + HALF))
        found = _power_squares(row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at], 0)
        start, stop = max(lo, at + HALF), max(at + HALF, min(hi, at + GROUP))
        codes = row[SCALE_BYTES + start - at - HALF : SCALE_BYTES + stop - at - HALF]
        found += _power_squares(codes, 4)
        total += _scaled(row, _MOST_FP4, np.float64(found) / 4096)
    return total


@kernel
def _power_squares(codes: Any, shift: int) -> Any:
    """Σ 4**(m − 1), the squares in units of the smallest, of the magnitudes that begin at bit ``shift``."""
    found = np.int32(0)
    for i in range(codes.shape[0]):
        m = np.int32(codes[i] >> np.uint8(shift)) & np.int32(7)
        found += (np.int32(1) << (np.int32(2) * m)) >> np.int32(2)
    return found


@kernel
def _scaled(row: Any, most: float, found: float) -> float:
    scale = np.float64(_scale(row))
    # Not (scale >= most): NaN has to come out of this too.
    return scale * scale * found if abs(scale) < most else np.inf


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(of: Any, words: Any, at: int) -> Any:
    """Write float32 values, at most :data:`BLOCK`, as elements from ``at`` on, where a block begins."""
    raise NotImplementedError("compiled code only")


@overload(encode, jit_options=OVERLOADED)  # type: ignore[untyped-decorator]
def _encode_for(of: Any, words: Any, at: int) -> Any:
    if _is(words, Int8):
        return _encode_int8
    if _is(words, Int4):
        return _encode_int4
    if _is(words, Fp4):
        return _encode_fp4
    return _encode_float32 if words.dtype == types.float32 else _encode_bfloat16


def _encode_float32(of: Any, words: Any, at: int) -> Any:
    for i in range(of.shape[0]):
        words[at + i] = of[i]


def _encode_bfloat16(of: Any, words: Any, at: int) -> Any:
    # Round to the nearest, ties to even. Rounding could carry a NaN into infinity: it is cut and kept quiet.
    bits, out = of.view(np.uint32), words[at : at + of.shape[0]]
    for i in range(bits.shape[0]):
        b = bits[i]
        high = b >> np.uint32(16)
        rounded = (b + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16)
        is_nan = (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[i] = np.uint16(high | np.uint32(0x40)) if is_nan else np.uint16(rounded)


def _encode_int8(of: Any, words: Any, at: int) -> Any:
    padded = np.empty(GROUP, np.float32)
    for start in range(0, of.shape[0], GROUP):
        row, group = words.blocks[(at + start) // GROUP], _group(of, start, padded)
        inverse, out = _put_scale(group, np.float32(127), row), row[SCALE_BYTES:]
        if inverse == 0:
            out[:] = 0
            continue
        for i in range(GROUP):
            out[i] = np.uint8(np.int32(np.rint(group[i] * inverse)))


def _encode_int4(of: Any, words: Any, at: int) -> Any:
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


def _encode_fp4(of: Any, words: Any, at: int) -> Any:
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
            b = codes[i] & np.uint32(_MAGNITUDE)
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
        most = max(most, bits[i] & np.uint32(_MAGNITUDE))
    scale, inverse = np.uint32(0), np.float32(0)
    if most >= np.uint32(_EXPONENT):
        scale = np.uint32(0x7FC00000)
    elif most >= np.uint32(_LEAST):
        exact = np.float32(np.uint32(most).view(np.float32) / levels)
        scale = np.uint32((exact.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000))
        inverse = np.float32(np.float32(1) / scale.view(np.float32))
    row[0], row[1] = np.uint8((scale >> np.uint32(16)) & np.uint32(0xFF)), np.uint8(scale >> np.uint32(24))
    return inverse
