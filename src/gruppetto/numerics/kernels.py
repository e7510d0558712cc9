"""The compiled passes over a fragment. What words mean, :mod:`~gruppetto.numerics.words` says; how they are read,
measured and written, :mod:`~gruppetto.numerics.reading`, :mod:`~gruppetto.numerics.squares` and
:mod:`~gruppetto.numerics.writing`. The checksum is apart, in :mod:`~gruppetto.numerics.crc`.

Each kernel is one pass over memory, serial, and gives the interpreter lock back, so that several may run on a
small thread pool, one piece list each. All of them are bound by memory bandwidth, not by arithmetic.

They work in blocks of :data:`BLOCK` elements, which stay in the first-level cache, and every inner loop
starts at 0 on a slice: that is the shape the compiler turns into vector instructions. What is compressed is
decoded a block at a time, in the cache; there is never a float32 copy of a whole payload.

:func:`warm` compiles everything; the result is cached on disk (:mod:`~gruppetto.numerics.compiling`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppetto.numerics import crc
from gruppetto.numerics.compiling import Float32, kernel, read_only, reduction
from gruppetto.numerics.reading import values
from gruppetto.numerics.squares import block_squares, squares
from gruppetto.numerics.words import BLOCK, GROUP, HALF, SCALE_BYTES, Fp4, Int4, Int8
from gruppetto.numerics.writing import put

__all__ = [
    "BLOCK",
    "BLOCK_ERROR",
    "Float32",
    "decode",
    "encode",
    "encode_difference",
    "encode_with_rest",
    "fold",
    "follow",
    "nesterov_step",
    "read_only",
    "sample_products",
    "sgd_step",
    "sum_squares",
    "take_step",
    "warm",
]

BLOCK_ERROR = 4.2e-6
"""A float32 sum of squares over one block errs by less, relatively: (1024/16 + log2 16 + 1) roundings of 2**-24 where
the compiler makes 16 partial sums, as for the narrowest vector units; with wider ones 5e-7 is hardly ever seen."""


@kernel
def _trusted(squares: float, values: Float32) -> float:
    # A float32 sum of squares that overflowed, or is near the denormals, is taken again in float64.
    if 1e-24 < squares < 1e37:
        return squares
    return block_squares(values)


@reduction
def _add_block(total: Float32, delta: Float32, scale: np.float32) -> float:
    squares = np.float32(0.0)
    for i in range(total.shape[0]):
        x = total[i] + scale * delta[i]
        total[i] = x
        squares += x * x
    return np.float64(squares)


@kernel
def _add_plain(total: Float32, delta: Float32, scale: np.float32) -> None:
    for i in range(total.shape[0]):
        total[i] += scale * delta[i]


@kernel
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


@kernel
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


@reduction
def _block_product(a: Float32, b: Float32) -> float:
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@kernel
def sample_products(words: Any, other: Float32, stride: int) -> tuple[float, float, float]:
    """⟨words, other⟩, ‖words‖² and ‖other‖², of every ``stride``-th block."""
    scratch = np.empty(BLOCK, np.float32)
    both, mine, its = 0.0, 0.0, 0.0
    for lo in range(0, other.shape[0], stride * BLOCK):
        hi = min(lo + BLOCK, other.shape[0])
        x, y = values(words, lo, hi, scratch), other[lo:hi]
        both += _block_product(x, y)
        mine += block_squares(x)
        its += block_squares(y)
    return both, mine, its


@kernel
def decode(words: Any, first: int, into: Float32) -> None:
    """into ← what the payload words say, from element ``first`` on."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, into.shape[0], BLOCK):
        block = into[lo : lo + BLOCK]
        found = values(words, first + lo, first + lo + block.shape[0], scratch)
        for i in range(block.shape[0]):
            block[i] = found[i]


@kernel
def encode(of: Float32, words: Any) -> None:
    """words ← the payload of these values."""
    for lo in range(0, of.shape[0], BLOCK):
        put(of[lo : lo + BLOCK], words, lo)


@kernel
def encode_difference(base: Float32, theta: Float32, words: Any) -> None:
    """words ← the payload of base − theta, without writing the difference anywhere else."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, base.shape[0], BLOCK):
        block, local = base[lo : lo + BLOCK], theta[lo : lo + BLOCK]
        difference = scratch[: block.shape[0]]
        for i in range(block.shape[0]):
            difference[i] = block[i] - local[i]
        put(difference, words, lo)


@kernel
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


@kernel
def take_step(before: Float32, after: Float32, rest: Any, words: Any, left: Any) -> float:
    """words ← the payload of v = (after − before) + rest, left ← that of v − q and after ← before + q, where q is what
    the words say. Returns ‖after‖². ``rest`` and ``left`` are blocks of words too; a rest of none is one of zeros."""
    scratch, wanted, size = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), 0.0
    for lo in range(0, before.shape[0], BLOCK):
        block, new = before[lo : lo + BLOCK], after[lo : lo + BLOCK]
        v = wanted[: block.shape[0]]
        for i in range(block.shape[0]):
            v[i] = new[i] - block[i]
        if rest.blocks.shape[0] > 0:
            more = values(rest, lo, lo + block.shape[0], scratch)
            for i in range(block.shape[0]):
                v[i] += more[i]
        put(v, words, lo)
        said = values(words, lo, lo + block.shape[0], scratch)
        for i in range(block.shape[0]):
            v[i] -= said[i]
            new[i] = block[i] + said[i]
        put(v, left, lo)
        size += block_squares(new)
    return size


@kernel
def follow(before: Float32, words: Any, into: Float32) -> None:
    """into ← before + what the payload says: the bits of :func:`take_step`, on any machine."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, before.shape[0], BLOCK):
        block, out = before[lo : lo + BLOCK], into[lo : lo + BLOCK]
        said = values(words, lo, lo + block.shape[0], scratch)
        for i in range(block.shape[0]):
            out[i] = block[i] + said[i]


@reduction
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


@reduction
def _sgd_block(total: Float32, scale: np.float32, theta: Float32, lr: np.float32) -> tuple[float, float]:
    moved, size = np.float32(0.0), np.float32(0.0)
    for i in range(total.shape[0]):
        delta = scale * total[i]  # used twice, or lr · scale would be regrouped into one factor
        theta[i] -= lr * delta
        moved += delta * delta
        size += theta[i] * theta[i]
    return np.float64(moved) * np.float64(lr) * np.float64(lr), np.float64(size)


@kernel
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


@kernel
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
            left = Int8(np.zeros((1, SCALE_BYTES + GROUP), np.uint8))
            take_step(read_only(one), one.copy(), Int8(read_only(left.blocks)), words, left)
            follow(read_only(one), given, one.copy())
    nesterov_step(one, starts, stops, one.copy(), one.copy(), one.copy(), half, half)
    sgd_step(one, starts, stops, one.copy(), one.copy(), half)
