"""CRC-32, the one of zlib and Ethernet, at the speed of memory where the processor multiplies without carries.

zlib needs 0.25 s for a gigabyte, as long as a loopback connection needs to move it. Folding (Gopal et al., "Fast CRC
Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009) brings the message down to 16 bytes that have the
same remainder; these and the few bytes after the last whole block go to zlib, which has the last word. Elsewhere, and
for what is short, zlib does it all.

Beside the other compiled loops (:mod:`gruppetto.numerics.kernels`), because this one is written in the compiler's own
language: no Python says "multiply without carries".
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from gruppetto.numerics.codec import Buffer

__all__ = ["FOLDS", "crc32", "warm"]

FOLDS = bool(llvmlite.binding.get_host_cpu_features().get("pclmul", False))
"""This processor has the instruction."""
LEAST_BYTES = 4096
"""Less is not worth the call."""
LANES = 8
LANE_BYTES = 16
BLOCK_BYTES = LANES * LANE_BYTES

_POLYNOMIAL = 0x104C11DB7


def _power(exponent: int) -> int:
    """x^exponent mod P, reflected, one bit up: what the product of two reflected numbers lacks."""
    value = 1
    for _ in range(exponent):
        value <<= 1
        if value >> 32:
            value ^= _POLYNOMIAL
    return int(f"{value:032b}"[::-1], 2) << 1


def _over(distance_bytes: int) -> tuple[int, int]:
    """What moves the lower and the upper half of a lane so many bytes on."""
    return _power(8 * distance_bytes + 32), _power(8 * distance_bytes - 32)


@intrinsic  # type: ignore[untyped-decorator]
def _fold(typing_context: Any, source: Any, num_blocks: Any, register: Any, target: Any) -> Any:
    """``num_blocks`` > 0 whole blocks at ``source`` to 16 bytes at ``target``, beginning with this ``register``."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        word, lane = ir.IntType(64), ir.VectorType(ir.IntType(64), 2)
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(lane, [lane, lane, ir.IntType(8)]), "llvm.x86.pclmulqdq"
        )
        first, count, register, result = arguments
        start = builder.inttoptr(first, lane.as_pointer())

        def load(index: Any) -> Any:
            found = builder.load(builder.gep(start, [index]))
            found.align = 1
            return found

        def moved(value: Any, distance_bytes: int) -> Any:
            by = ir.Constant(lane, list(_over(distance_bytes)))
            halves = [builder.call(multiply, [value, by, ir.Constant(ir.IntType(8), which)]) for which in (0x00, 0x11)]
            return builder.xor(*halves)

        sums = [cgutils.alloca_once_value(builder, load(ir.Constant(word, k))) for k in range(LANES)]
        head = builder.insert_element(ir.Constant(lane, [0, 0]), register, ir.Constant(ir.IntType(32), 0))
        builder.store(builder.xor(builder.load(sums[0]), head), sums[0])
        with cgutils.for_range(builder, count, start=ir.Constant(word, 1), intp=word) as loop:
            base = builder.mul(loop.index, ir.Constant(word, LANES))
            for k, total in enumerate(sums):
                fresh = load(builder.add(base, ir.Constant(word, k)))
                builder.store(builder.xor(moved(builder.load(total), BLOCK_BYTES), fresh), total)
        whole = builder.load(sums[0])
        for total in sums[1:]:
            whole = builder.xor(moved(whole, LANE_BYTES), builder.load(total))
        builder.store(whole, builder.inttoptr(result, lane.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _folded(octets: Any, num_blocks: int, register: int) -> tuple[int, int]:
    """The 16 bytes as two numbers. It takes the array itself: its address costs Python more than the fold."""
    remainder = np.empty(2, np.uint64)
    _fold(octets.ctypes.data, num_blocks, register, remainder.ctypes.data)
    return remainder[0], remainder[1]


def crc32(data: Buffer, start: int = 0) -> int:
    """CRC-32 of ``data``, or of its continuation if ``start`` is the checksum so far.

    >>> crc32(b"123456789") == 0xCBF43926
    True
    >>> crc32(b"6789", crc32(b"12345")) == 0xCBF43926
    True
    """
    octets = np.frombuffer(data, np.uint8)
    if not FOLDS or octets.size < LEAST_BYTES:
        return zlib.crc32(octets.data, start)
    octets.flags.writeable = False  # the one kind of array that it is compiled for
    num_blocks, tail_bytes = divmod(octets.size, BLOCK_BYTES)
    # zlib gives the complement of its register, and takes it back. Of what is folded it begins with none.
    low, high = _folded(octets, num_blocks, start ^ 0xFFFFFFFF)
    crc = zlib.crc32((low | high << 64).to_bytes(LANE_BYTES, "little"), 0xFFFFFFFF)
    return zlib.crc32(octets[-tail_bytes:].data, crc) if tail_bytes else crc


def warm() -> None:
    """Compile, or load from the cache."""
    crc32(bytes(LEAST_BYTES))
