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

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BLOCK",
    "GROUP",
    "HALF",
    "LARGEST_INT4",
    "LARGEST_INT8",
    "LEAST",
    "SCALE_BYTES",
    "Fp4",
    "Int4",
    "Int8",
]

BLOCK = 1024
"""Elements in a stride of a loop: 4 KiB, which stay in the first-level cache. A multiple of :data:`GROUP`."""
GROUP = 128
"""Elements behind one scale."""
HALF = GROUP // 2
SCALE_BYTES = 2
LEAST = 0x0D800000
"""The bits of 2⁻¹⁰⁰: below, a scale might have no reciprocal."""
LARGEST_INT8, LARGEST_INT4 = 2.0**121, 2.0**125
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
