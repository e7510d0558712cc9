"""The compiled loops: every numba function of the package lives here, but the checksum. What words mean,
:mod:`~gruppetto.numerics.words` says: first come the bodies for each kind of them, then the passes over a fragment.

All in one file, because that is what numba's cache on disk goes by: it would not notice a change in another one.

Each kernel is one pass over memory, serial, and gives the interpreter lock back, so that several may run on a
small thread pool, one piece list each. All of them are bound by memory bandwidth, not by arithmetic.

* They work in blocks of :data:`BLOCK` elements, which stay in the first-level cache, and every inner loop
  starts at 0 on a slice: that is the shape the compiler turns into vector instructions. What is compressed is
  decoded a block at a time, in the cache; there is never a float32 copy of a whole payload.
* Elementwise arithmetic is plain float32, never fused or reordered, so it gives the bits that numpy gives.
  Only sums of squares may be reordered.
* A squared norm is finite exactly if every value is: float64 cannot overflow on squares of float32. One
  number is therefore both the norm and the finite check.

Inputs that are only read arrive as read-only views (:func:`read_only`), because numba compiles anew for
every kind of array it meets. :func:`warm` compiles everything; the result is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from gruppetto.numerics import crc
from gruppetto.numerics.words import (
    BLOCK,
    GROUP,
    HALF,
    LARGEST_INT4,
    LARGEST_INT8,
    LEAST,
    POWERS,
    SCALE_BYTES,
    Fp4,
    Int4,
    Int8,
)

__all__ = [
    "BLOCK",
    "BLOCK_ERROR",
    "Float32",
    "decode",
    "encode",
    "encode_difference",
    "encode_with_rest",
    "fold",
    "nesterov_step",
    "read_only",
    "sample_products",
    "sgd_step",
    "sum_squares",
    "warm",
]

BLOCK_ERROR = 4.2e-6
"""A float32 sum of squares over one block errs by less, relatively: (1024/16 + log2 16 + 1) roundings of 2**-24 where
the compiler makes 16 partial sums, as for the narrowest vector units; with wider ones 5e-7 is hardly ever seen."""

Float32 = NDArray[np.float32]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Array = TypeVar("_Array", bound=NDArray[Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""Options of a function that has one body for each kind of words."""


def _kernel(function: _Function) -> _Function:
    """Compile as it is written."""
    return _compiled(function, False)


def _reduction(function: _Function) -> _Function:
    """Compile; sums may be taken in any order."""
    # NaN and infinity must survive, and a product may not be fused into a sum: only the order is free.
    return _compiled(function, {"reassoc", "nsz"})


def _compiled(function: _Function, fastmath: bool | set[str]) -> _Function:
    options = {**_OPTIONS, "fastmath": fastmath}
    try:
        return cast(_Function, njit(cache=True, **options)(function))
    except RuntimeError:  # no writable place for the cache: compile once a process instead
        return cast(_Function, njit(**options)(function))


def read_only(values: _Array) -> _Array:
    """A view of ``values`` that cannot be written: the one kind of input array the kernels are compiled for."""
    view = values.view()
    view.flags.writeable = False
    return view


def _is(words: Any, kind: type) -> bool:
    return getattr(words, "instance_class", None) is kind


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def values(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    """The float32 values of elements ``lo`` to ``hi``, at most :data:`BLOCK`; ``scratch`` may hold them."""
    raise NotImplementedError("compiled code only")


@overload(values, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
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
    # Four bits have sixteen meanings: they are scaled once a block, and then only looked up.
    scaled = np.empty(16, np.float32)
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, at = words.blocks[g], g * GROUP
        scale = _scale(row)
        for k in range(16):
            scaled[k] = scale * POWERS[k]
        start, stop = max(lo, at), max(lo, min(hi, at + HALF))
        codes, out = row[SCALE_BYTES + start - at : SCALE_BYTES + stop - at], scratch[start - lo : stop - lo]
        for i in range(out.shape[0]):
            out[i] = scaled[codes[i] & np.uint8(15)]
        start, stop = max(lo, at + HALF), max(at + HALF, min(hi, at + GROUP))
        codes = row[SCALE_BYTES + start - at - HALF : SCALE_BYTES + stop - at - HALF]
        out = scratch[start - lo : stop - lo]
        for i in range(out.shape[0]):
            out[i] = scaled[codes[i] >> np.uint8(4)]
    return scratch[: hi - lo]


@_kernel
def _scale(row: Any) -> Any:
    bits = np.uint32((np.uint32(row[0]) | (np.uint32(row[1]) << np.uint32(8))) << np.uint32(16))
    return bits.view(np.float32)


# ── squared norms ────────────────────────────────────────────────────────────────────────────────────────────────────


@_reduction
def _block_squares(of: Any) -> float:
    """The sum of the squares of float32 values, in float64."""
    total = 0.0
    for i in range(of.shape[0]):
        x = np.float64(of[i])
        total += x * x
    return total


def squares(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    """The sum of the squares of elements ``lo`` to ``hi``, at most :data:`BLOCK`; not finite if one of them is not."""
    raise NotImplementedError("compiled code only")


@overload(squares, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _squares_for(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    if _is(words, Int8):
        return _squares_int8
    if _is(words, Int4):
        return _squares_int4
    return _squares_fp4 if _is(words, Fp4) else _squares_plain


def _squares_plain(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    return _block_squares(values(words, lo, hi, scratch))


def _squares_int8(words: Any, lo: int, hi: int, scratch: Any) -> Any:
    total = 0.0
    for g in range(lo // GROUP, -(-hi // GROUP)):
        row, start, stop = words.blocks[g], max(lo, g * GROUP), min(hi, g * GROUP + GROUP)
        codes, found = row[SCALE_BYTES + start - g * GROUP : SCALE_BYTES + stop - g * GROUP], np.int32(0)
        for i in range(codes.shape[0]):
            code = np.int32(np.int8(codes[i]))
            found += code * code
        total += _scaled(row, LARGEST_INT8, np.float64(found))
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
        total += _scaled(row, LARGEST_INT4, np.float64(found))
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
        total += _scaled(row, np.inf, np.float64(found) / 4096)
    return total


@_kernel
def _power_squares(codes: Any, shift: int) -> Any:
    """Σ 4**(m − 1), the squares in units of the smallest, of the magnitudes that begin at bit ``shift``."""
    found = np.int32(0)
    for i in range(codes.shape[0]):
        m = np.int32(codes[i] >> np.uint8(shift)) & np.int32(7)
        found += (np.int32(1) << (np.int32(2) * m)) >> np.int32(2)
    return found


@_kernel
def _scaled(row: Any, most: float, found: float) -> float:
    scale = np.float64(_scale(row))
    # Not (scale >= most): NaN has to come out of this too.
    return scale * scale * found if abs(scale) < most else np.inf


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(of: Any, words: Any, at: int) -> Any:
    """Write float32 values, at most :data:`BLOCK`, as elements from ``at`` on, where a block begins."""
    raise NotImplementedError("compiled code only")


@overload(put, jit_options=_OPTIONS)  # type: ignore[untyped-decorator]
def _put_for(of: Any, words: Any, at: int) -> Any:
    if _is(words, Int8):
        return _put_int8
    if _is(words, Int4):
        return _put_int4
    if _is(words, Fp4):
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


@_kernel
def _group(of: Any, start: int, padded: Any) -> Any:
    """One whole group; the last one is filled up with zeros."""
    if of.shape[0] - start >= GROUP:
        return of[start : start + GROUP]
    rest = of[start:]
    padded[:] = np.float32(0)
    for i in range(rest.shape[0]):
        padded[i] = rest[i]
    return padded[:GROUP]


@_kernel
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


# ── passes over a fragment ───────────────────────────────────────────────────────────────────────────────────────────


@_kernel
def _trusted(squares: float, values: Float32) -> float:
    # A float32 sum of squares that overflowed, or is near the denormals, is taken again in float64.
    if 1e-24 < squares < 1e37:
        return squares
    return _block_squares(values)


@_reduction
def _add_block(total: Float32, delta: Float32, scale: np.float32) -> float:
    squares = np.float32(0.0)
    for i in range(total.shape[0]):
        x = total[i] + scale * delta[i]
        total[i] = x
        squares += x * x
    return np.float64(squares)


@_kernel
def _add_plain(total: Float32, delta: Float32, scale: np.float32) -> None:
    for i in range(total.shape[0]):
        total[i] += scale * delta[i]


@_kernel
def sum_squares(
    words: Any,
    first: int,
    numel: int,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    found: NDArray[np.float64],
) -> None:
    """Add to ``found`` [pieces] what the words, ``numel`` elements from ``first`` of the fragment on, give to each."""
    scratch = np.empty(BLOCK, np.float32)
    last = first + numel
    for p in range(starts.shape[0]):
        start, stop = max(starts[p], first), min(stops[p], last)
        for lo in range(start, stop, BLOCK):
            hi = min(lo + BLOCK, stop)
            found[p] += squares(words, lo - first, hi - first, scratch)


@_kernel
def fold(
    total: Float32,
    words: Any,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    scales: Float32,
    norm_sq: NDArray[np.float64],
    plain: Float32,
    plain_starts: NDArray[np.int64],
    plain_scales: Float32,
) -> None:
    """total += scales[piece] · words, and ``norm_sq`` ← the squared norm of each piece of the new total.

    Pieces with ``plain_starts[p] >= 0`` are also added, times ``plain_scales[p]``, to ``plain`` at that place.
    """
    scratch = np.empty(BLOCK, np.float32)
    for p in range(starts.shape[0]):
        start, stop = starts[p], stops[p]
        found = 0.0
        for lo in range(start, stop, BLOCK):
            hi = min(lo + BLOCK, stop)
            delta = values(words, lo, hi, scratch)
            block = total[lo:hi]
            found += _trusted(_add_block(block, delta, scales[p]), block)
            if plain_starts[p] >= 0:
                at = plain_starts[p] - start
                _add_plain(plain[at + lo : at + hi], delta, plain_scales[p])
        norm_sq[p] = found


@_reduction
def _block_product(a: Float32, b: Float32) -> float:
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@_kernel
def sample_products(words: Any, other: Float32, stride: int) -> tuple[float, float, float]:
    """⟨words, other⟩, ‖words‖² and ‖other‖², of every ``stride``-th block."""
    scratch = np.empty(BLOCK, np.float32)
    both, mine, its = 0.0, 0.0, 0.0
    for lo in range(0, other.shape[0], stride * BLOCK):
        hi = min(lo + BLOCK, other.shape[0])
        x, y = values(words, lo, hi, scratch), other[lo:hi]
        both += _block_product(x, y)
        mine += _block_squares(x)
        its += _block_squares(y)
    return both, mine, its


@_kernel
def decode(words: Any, first: int, into: Float32) -> None:
    """into ← what the payload words say, from element ``first`` on."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, into.shape[0], BLOCK):
        block = into[lo : lo + BLOCK]
        found = values(words, first + lo, first + lo + block.shape[0], scratch)
        for i in range(block.shape[0]):
            block[i] = found[i]


@_kernel
def encode(of: Float32, words: Any) -> None:
    """words ← the payload of these values."""
    for lo in range(0, of.shape[0], BLOCK):
        put(of[lo : lo + BLOCK], words, lo)


@_kernel
def encode_difference(base: Float32, theta: Float32, words: Any) -> None:
    """words ← the payload of base − theta, without writing the difference anywhere else."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, base.shape[0], BLOCK):
        block, local = base[lo : lo + BLOCK], theta[lo : lo + BLOCK]
        difference = scratch[: block.shape[0]]
        for i in range(block.shape[0]):
            difference[i] = block[i] - local[i]
        put(difference, words, lo)


@_kernel
def encode_with_rest(base: Float32, theta: Float32, rest: Float32, words: Any, left: Float32) -> None:
    """words ← the payload of v = (base − theta) + rest, left ← v − what the payload says: exactly, but for the sum.

    ``rest`` of no elements is one of zeros.
    """
    scratch, wanted = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    for lo in range(0, base.shape[0], BLOCK):
        block, local, over = base[lo : lo + BLOCK], theta[lo : lo + BLOCK], left[lo : lo + BLOCK]
        v = wanted[: block.shape[0]]
        for i in range(block.shape[0]):
            v[i] = block[i] - local[i]
        if rest.shape[0] > 0:
            more = rest[lo : lo + BLOCK]
            for i in range(block.shape[0]):
                v[i] += more[i]
        put(v, words, lo)
        said = values(words, lo, lo + block.shape[0], scratch)
        for i in range(block.shape[0]):
            over[i] = v[i] - said[i]


@_reduction
def _nesterov_block(
    total: Float32, scale: np.float32, theta: Float32, b: Float32, lr: np.float32, momentum: np.float32
) -> tuple[float, float]:
    moved, size = np.float32(0.0), np.float32(0.0)
    for i in range(total.shape[0]):
        delta = scale * total[i]
        b[i] = momentum * b[i] + delta
        step = lr * (delta + momentum * b[i])
        theta[i] -= step
        moved += step * step
        size += theta[i] * theta[i]
    return np.float64(moved), np.float64(size)


@_reduction
def _sgd_block(total: Float32, scale: np.float32, theta: Float32, lr: np.float32) -> tuple[float, float]:
    moved, size = np.float32(0.0), np.float32(0.0)
    for i in range(total.shape[0]):
        delta = scale * total[i]  # used twice, or lr · scale would be regrouped into one factor
        theta[i] -= lr * delta
        moved += delta * delta
        size += theta[i] * theta[i]
    return np.float64(moved) * np.float64(lr) * np.float64(lr), np.float64(size)


@_kernel
def nesterov_step(
    total: Float32,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    scales: Float32,
    theta: Float32,
    b: Float32,
    lr: np.float32,
    momentum: np.float32,
) -> tuple[float, float]:
    """Δ = scales[piece]·total; b ← μ·b + Δ; Θ ← Θ − η·(Δ + μ·b). Returns ‖η·(Δ + μ·b)‖² and ‖Θ‖²."""
    moved, size = 0.0, 0.0
    for p in range(starts.shape[0]):
        for lo in range(starts[p], stops[p], BLOCK):
            hi = min(lo + BLOCK, stops[p])
            block = theta[lo:hi]
            m, s = _nesterov_block(total[lo:hi], scales[p], block, b[lo:hi], lr, momentum)
            moved += m
            size += _trusted(s, block)
    return moved, size


@_kernel
def sgd_step(
    total: Float32,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    scales: Float32,
    theta: Float32,
    lr: np.float32,
) -> tuple[float, float]:
    """Δ = scales[piece]·total; Θ ← Θ − η·Δ. Returns ‖η·Δ‖² and ‖Θ‖²."""
    moved, size = 0.0, 0.0
    for p in range(starts.shape[0]):
        for lo in range(starts[p], stops[p], BLOCK):
            hi = min(lo + BLOCK, stops[p])
            block = theta[lo:hi]
            m, s = _sgd_block(total[lo:hi], scales[p], block, lr)
            moved += m
            size += _trusted(s, block)
    return moved, size


def warm(codecs: Collection[str] | None = None) -> None:
    """Compile the kernels for these codecs (None: all), or load them from the cache.

    Ten seconds or so the first time on a machine, and five more for those of blocks; then a fraction of one.
    """
    crc.warm()
    one = np.ones(1, np.float32)
    starts, stops, norm_sq = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1)
    half = np.float32(0.5)
    room: dict[str, Any] = {
        "fp32": np.ones(1, np.float32),
        "bf16": np.ones(1, np.uint16),
        "int8": Int8(np.zeros((1, SCALE_BYTES + GROUP), np.uint8)),
        "int4": Int4(np.zeros((1, SCALE_BYTES + HALF), np.uint8)),
        "fp4-e3m0": Fp4(np.zeros((1, SCALE_BYTES + HALF), np.uint8)),
    }
    for words in [words for name, words in room.items() if codecs is None or name in codecs]:
        given = type(words)(read_only(words[0])) if isinstance(words, tuple) else read_only(words)
        sum_squares(given, 0, 1, starts, stops, norm_sq)
        fold(one.copy(), given, starts, stops, one, norm_sq, one.copy(), starts, one)
        sample_products(given, read_only(one), 1)
        decode(given, 0, one.copy())
        encode(read_only(one), words)
        encode_difference(read_only(one), read_only(one), words)
        if isinstance(words, tuple):
            encode_with_rest(read_only(one), read_only(one), read_only(one), words, one.copy())
    nesterov_step(one, starts, stops, one.copy(), one.copy(), one.copy(), half, half)
    sgd_step(one, starts, stops, one.copy(), one.copy(), half)
