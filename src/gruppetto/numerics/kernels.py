"""The compiled loops: every numba function of the package lives here.

Each kernel is one pass over memory, serial, and gives the interpreter lock back, so that several may run on a
small thread pool, one piece list each. All of them are bound by memory bandwidth, not by arithmetic.

* They work in blocks of :data:`BLOCK` elements, which stay in the first-level cache, and every inner loop
  starts at 0 on a slice: that is the shape the compiler turns into vector instructions.
* Elementwise arithmetic is plain float32, never fused or reordered, so it gives the bits that numpy gives.
  Only sums of squares may be reordered.
* A squared norm is finite exactly if every value is: float64 cannot overflow on squares of float32. One
  number is therefore both the norm and the finite check.
* What a payload holds is told by the dtype of its words: float32 is itself, uint16 is bfloat16. A new
  encoding is one more branch of ``_decode`` and ``_encode``.

Inputs that are only read arrive as read-only views (:func:`read_only`), because numba compiles anew for
every kind of array it meets. :func:`warm` compiles everything; the result is cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "BLOCK_ERROR",
    "Float32",
    "decode",
    "encode",
    "encode_difference",
    "fold",
    "nesterov_step",
    "read_only",
    "sample_products",
    "sgd_step",
    "sum_squares",
    "warm",
]

BLOCK = 1024
"""Elements in a block: 4 KiB. float64 adds up the blocks."""
BLOCK_ERROR = 4.2e-6
"""A float32 sum of squares over one block errs by less, relatively: (1024/16 + log2 16 + 1) roundings of 2**-24 where
the compiler makes 16 partial sums, as for the narrowest vector units; with wider ones 5e-7 is hardly ever seen."""

Float32 = NDArray[np.float32]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Array = TypeVar("_Array", bound=NDArray[Any])


def _compiled(function: _Function, fastmath: bool | set[str]) -> _Function:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    try:
        return cast(_Function, njit(cache=True, **options)(function))
    except RuntimeError:  # no writable place for the cache: compile once a process instead
        return cast(_Function, njit(**options)(function))


def _kernel(function: _Function) -> _Function:
    return _compiled(function, False)


def _reduction(function: _Function) -> _Function:
    # NaN and infinity must survive, and a product may not be fused into a sum: only the order is free.
    return _compiled(function, {"reassoc", "nsz"})


def read_only(values: _Array) -> _Array:
    """A view of ``values`` that cannot be written: the one kind of input array the kernels are compiled for."""
    view = values.view()
    view.flags.writeable = False
    return view


def _decode(words: Any, scratch: Any) -> Any:
    """The float32 values of one block of payload words; ``scratch`` may hold them."""
    raise NotImplementedError("compiled code only")


@overload(_decode, jit_options={"nogil": True, "error_model": "numpy"})  # type: ignore[untyped-decorator]
def _decode_for(words: Any, scratch: Any) -> Any:
    if words.dtype == types.float32:

        def float32(words: Any, scratch: Any) -> Any:
            return words

        return float32

    def bfloat16(words: Any, scratch: Any) -> Any:
        bits = scratch.view(np.uint32)
        for i in range(words.shape[0]):
            bits[i] = np.uint32(words[i]) << np.uint32(16)
        return scratch[: words.shape[0]]

    return bfloat16


def _encode(values: Any, words: Any) -> Any:
    """Write one block of float32 values as payload words."""
    raise NotImplementedError("compiled code only")


@overload(_encode, jit_options={"nogil": True, "error_model": "numpy"})  # type: ignore[untyped-decorator]
def _encode_for(values: Any, words: Any) -> Any:
    if words.dtype == types.float32:

        def float32(values: Any, words: Any) -> Any:
            for i in range(values.shape[0]):
                words[i] = values[i]

        return float32

    def bfloat16(values: Any, words: Any) -> Any:
        # Round to the nearest, ties to even. Rounding could carry a NaN into infinity: it is cut and kept
        # quiet.
        bits = values.view(np.uint32)
        for i in range(bits.shape[0]):
            b = bits[i]
            high = b >> np.uint32(16)
            rounded = (b + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16)
            is_nan = (b & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            words[i] = np.uint16(high | np.uint32(0x40)) if is_nan else np.uint16(rounded)

    return bfloat16


@_reduction
def _block_squares(values: Float32) -> float:
    total = 0.0
    for i in range(values.shape[0]):
        x = np.float64(values[i])
        total += x * x
    return total


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
    words: NDArray[Any],
    first: int,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    squares: NDArray[np.float64],
) -> None:
    """Add to ``squares`` [pieces] what the words, lying at element ``first`` of the fragment, give to each piece."""
    scratch = np.empty(BLOCK, np.float32)
    last = first + words.shape[0]
    for p in range(starts.shape[0]):
        start, stop = max(starts[p], first), min(stops[p], last)
        for lo in range(start, stop, BLOCK):
            hi = min(lo + BLOCK, stop)
            squares[p] += _block_squares(_decode(words[lo - first : hi - first], scratch))


@_kernel
def fold(
    total: Float32,
    words: NDArray[Any],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    scales: Float32,
    squares: NDArray[np.float64],
    plain: Float32,
    plain_starts: NDArray[np.int64],
    plain_scales: Float32,
) -> None:
    """total += scales[piece] · words, and ``squares`` ← the squared norm of each piece of the new total.

    Pieces with ``plain_starts[p] >= 0`` are also added, times ``plain_scales[p]``, to ``plain`` at that place.
    """
    scratch = np.empty(BLOCK, np.float32)
    for p in range(starts.shape[0]):
        start, stop = starts[p], stops[p]
        found = 0.0
        for lo in range(start, stop, BLOCK):
            hi = min(lo + BLOCK, stop)
            delta = _decode(words[lo:hi], scratch)
            block = total[lo:hi]
            found += _trusted(_add_block(block, delta, scales[p]), block)
            if plain_starts[p] >= 0:
                at = plain_starts[p] - start
                _add_plain(plain[at + lo : at + hi], delta, plain_scales[p])
        squares[p] = found


@_reduction
def _block_product(a: Float32, b: Float32) -> float:
    total = 0.0
    for i in range(a.shape[0]):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@_kernel
def sample_products(words: NDArray[Any], other: Float32, stride: int) -> tuple[float, float, float]:
    """⟨words, other⟩, ‖words‖² and ‖other‖², of every ``stride``-th block."""
    scratch = np.empty(BLOCK, np.float32)
    both, mine, its = 0.0, 0.0, 0.0
    for lo in range(0, words.shape[0], stride * BLOCK):
        hi = min(lo + BLOCK, words.shape[0])
        x, y = _decode(words[lo:hi], scratch), other[lo:hi]
        both += _block_product(x, y)
        mine += _block_squares(x)
        its += _block_squares(y)
    return both, mine, its


@_kernel
def decode(words: NDArray[Any], values: Float32) -> None:
    """values ← what the payload words say."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, words.shape[0], BLOCK):
        block = values[lo : lo + BLOCK]
        found = _decode(words[lo : lo + BLOCK], scratch)
        for i in range(block.shape[0]):
            block[i] = found[i]


@_kernel
def encode(values: Float32, words: NDArray[Any]) -> None:
    """words ← the payload of ``values``."""
    for lo in range(0, words.shape[0], BLOCK):
        _encode(values[lo : lo + BLOCK], words[lo : lo + BLOCK])


@_kernel
def encode_difference(base: Float32, theta: Float32, words: NDArray[Any]) -> None:
    """words ← the payload of base − theta, without writing the difference anywhere else."""
    scratch = np.empty(BLOCK, np.float32)
    for lo in range(0, words.shape[0], BLOCK):
        block, local = base[lo : lo + BLOCK], theta[lo : lo + BLOCK]
        difference = scratch[: block.shape[0]]
        for i in range(block.shape[0]):
            difference[i] = block[i] - local[i]
        _encode(difference, words[lo : lo + BLOCK])


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


def warm() -> None:
    """Compile every kernel, or load it from the cache: seconds the first time on a machine, then a fraction of one."""
    one = np.ones(1, np.float32)
    starts, stops, squares = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1)
    half = np.float32(0.5)
    for words in (np.ones(1, np.float32), np.ones(1, np.uint16)):
        given = read_only(words)
        sum_squares(given, 0, starts, stops, squares)
        fold(one.copy(), given, starts, stops, one, squares, one.copy(), starts, one)
        sample_products(given, read_only(one), 1)
        decode(given, one.copy())
        encode(read_only(one), words)
        encode_difference(read_only(one), read_only(one), words)
    nesterov_step(one, starts, stops, one.copy(), one.copy(), one.copy(), half, half)
    sgd_step(one, starts, stops, one.copy(), one.copy(), half)
