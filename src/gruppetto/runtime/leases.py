"""Host memory lent out by reference count: a buffer still being read is never written again.

First touch of fresh memory costs several times a reuse, so buffers go back to a pool. Sizes are rounded up to a
grain, which lets fragments of nearly equal size share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Lease", "LeasePool"]

Float32 = NDArray[np.float32]

MAX_FREE = 8
"""Idle buffers kept of each size: a few snapshots and arrivals. More go back to the system."""


def _plain(numel: int) -> Float32:
    return np.empty(numel, np.float32)


def _at_once() -> None:
    """What the processor has written can be read at once."""


class Lease:
    """A flat float32 vector with holders. Made with one; after the last release it may be lent again.

    ``ready`` blocks until ``values`` may be read: a copy from a device may still be under way. Whoever reads the
    values on another thread than the one that wrote them calls it first.
    """

    __slots__ = ("_buffer", "_holders", "_pool", "ready", "values")

    def __init__(self, pool: LeasePool, buffer: Float32, numel: int) -> None:
        self._pool, self._buffer, self._holders = pool, buffer, 1
        self.values: Float32 = buffer[:numel]
        self.ready: Callable[[], None] = _at_once

    def hold(self) -> Lease:
        """One more holder, who will release it; the same lease, for chaining."""
        with self._pool.lock:
            assert self._holders > 0, "a released buffer may belong to someone else by now"
            self._holders += 1
        return self

    def release(self) -> None:
        """One holder fewer. The values may not be touched by this holder any more."""
        with self._pool.lock:
            assert self._holders > 0, "released more often than held"
            self._holders -= 1
            if self._holders == 0:
                self._pool._take_back(self._buffer, self.ready)


class LeasePool:
    """Lends float32 vectors. Safe to use from several threads.

    ``allocate`` makes a fresh buffer of so many elements (page-locked memory for a GPU). ``grain`` is what sizes are
    rounded up to, in elements.

    >>> pool = LeasePool(grain=4)
    >>> first = pool.lend(3)
    >>> address = first.values.ctypes.data
    >>> first.release()
    >>> again = pool.lend(4)
    >>> again.values.size, again.values.ctypes.data == address
    (4, True)
    """

    def __init__(self, allocate: Callable[[int], Float32] = _plain, *, grain: int = 1) -> None:
        assert grain > 0
        self.lock = threading.Lock()
        self._allocate, self._grain = allocate, grain
        self._free: dict[int, list[tuple[Float32, Callable[[], None]]]] = {}

    def lend(self, numel: int) -> Lease:
        """A vector of ``numel`` elements with arbitrary content."""
        capacity = max(1, -(-numel // self._grain)) * self._grain
        with self.lock:
            free = self._free.get(capacity)
            found = free.pop() if free else None
        if found is None:
            return Lease(self, self._allocate(capacity), numel)
        buffer, ready = found
        ready()  # a copy that nobody read may still be on its way into this buffer
        return Lease(self, buffer, numel)

    def _take_back(self, buffer: Float32, ready: Callable[[], None]) -> None:
        free = self._free.setdefault(buffer.size, [])
        if len(free) < MAX_FREE:
            free.append((buffer, ready))
