"""Which windows of the data a slot trains on: a pure function of (seed, slot, index).

The token array is cut into windows, window w being tokens [w·context, (w + 1)·context). All slots together
walk through one endless sequence of positions; slot s of S owns positions s, S + s, 2S + s, … An epoch is a
run of ``num_windows`` positions, and within it position → window is a permutation keyed by (seed, epoch). So
slots never share a window within an epoch, together they miss none, and any point of any slot is reached at
once, which is what lets another learner take a slot over from its cursor alone.

The permutation is never written down: it is a Feistel network over the next power of four, walked until it
lands inside (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import SettingError

__all__ = ["Slot", "permuted"]

FEISTEL_ROUNDS = 6
MAX_WINDOWS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of ``num_slots`` equal shares of the data, in the order that ``seed`` gives.

    >>> Slot(seed=0, slot=0, num_slots=2, num_windows=6).windows(0, 3)
    array([0, 3, 1])
    >>> Slot(seed=0, slot=1, num_slots=2, num_windows=6).windows(0, 3)
    array([2, 5, 4])
    """

    seed: int
    slot: int
    num_slots: int
    num_windows: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_windows <= MAX_WINDOWS:
            raise SettingError(f"is {self.num_windows}", where="order.num_windows", fix="use 1 or more")
        if self.num_slots < 1:
            raise SettingError(f"is {self.num_slots}", where="order.num_slots", fix="use 1 or more")
        if not 0 <= self.slot < self.num_slots:
            raise SettingError(
                f"slot {self.slot} is not one of the {self.num_slots} slots",
                where="order.slot",
                fix=f"use 0 to {self.num_slots - 1}, or raise data.slots",
            )

    def windows(self, index: int, count: int) -> NDArray[np.int64]:
        """The windows number ``index`` to ``index + count − 1`` of this slot, int64 (count,)."""
        assert index >= 0 and count >= 0
        first = index * self.num_slots + self.slot
        # Python integers until the epoch is known: positions of a long run need not fit 64 bits.
        epoch, offset = divmod(first, self.num_windows)
        ahead = offset + self.num_slots * np.arange(count, dtype=np.int64)
        epochs_on, offsets = np.divmod(ahead, self.num_windows)
        windows = np.empty(count, np.int64)
        for later in np.unique(epochs_on):
            here = epochs_on == later
            windows[here] = permuted(offsets[here], self.num_windows, seed=self.seed, epoch=epoch + int(later))
        return windows


def permuted(positions: NDArray[np.int64], size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where each position in [0, size) goes under the permutation of [0, size) keyed by (seed, epoch).

    >>> sorted(permuted(np.arange(10), 10, seed=1, epoch=2).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    keys = _keys(seed, epoch)
    values = positions.astype(np.uint64)
    # The network permutes a domain at most four times as large; a walk that starts inside comes back inside.
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half_bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << bits) | right


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _keys(seed: int, epoch: int) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(f"gruppetto order {seed} {epoch}".encode(), digest_size=8 * FEISTEL_ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)
