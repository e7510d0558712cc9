"""Snapshots: the fragments that may be asked for next, copied to host memory at every step boundary (section 2).

On a GPU the copy runs on a stream of its own, under the next forward and backward pass; only the next write to the
parameters waits for it (:meth:`Snapshots.before_write`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from gruppetto.attach.sharding import FlatModel
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.leases import Lease, LeasePool

__all__ = ["Snapshots", "pool_for"]

GRAINS = 16
"""Buffer sizes between nothing and the largest fragment; so no buffer wastes more than a sixteenth of that."""


def pool_for(model: FlatModel) -> LeasePool:
    """A pool of host buffers for a model that has been cut: page-locked if the model is on a GPU."""
    largest = max(model.numel(p) for p in range(model.num_fragments))
    grain = max(1, -(-largest // GRAINS))
    return LeasePool(_pinned, grain=grain) if model.on_one_gpu else LeasePool(grain=grain)


def _pinned(numel: int) -> NDArray[np.float32]:
    values: NDArray[np.float32] = torch.empty(numel, dtype=torch.float32, pin_memory=True).numpy()
    return values


class Snapshots:
    """The copies of the last boundary, by fragment. Those still being read elsewhere stay as they are.

    ``whole``: of many ranks each copies all that it has, not only what it supplies to the run.
    """

    def __init__(self, model: FlatModel, pool: LeasePool, *, whole: bool = True) -> None:
        self._pool, self._model = pool, model
        self._read = model.read if whole else model.read_supplied
        self._leases: dict[int, Lease] = {}
        self._stream: torch.cuda.Stream | None = None
        if model.on_one_gpu:
            self._stream = torch.cuda.Stream(model.device)  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None

    def take(self, fragments: Iterable[int]) -> None:
        """Copy these fragments as they are now, in place of all copies of the last boundary."""
        self.drop()
        for fragment in fragments:
            self._leases[fragment] = self._copy(fragment)

    def copy(self, fragment: int) -> Lease:
        """One copy that is not kept here; the caller releases it."""
        return self._copy(fragment)

    def get(self, fragment: int) -> Lease:
        """The snapshot of a fragment, not held for the caller."""
        return self._leases[fragment]

    def held(self) -> dict[Fragment, Lease]:
        """All copies of the last boundary, finished, not held for the caller."""
        for lease in self._leases.values():
            lease.ready()
        return {Fragment(p): lease for p, lease in self._leases.items()}

    def put(self, fragment: int, lease: Lease) -> None:
        """Take a copy that was made elsewhere, and its hold."""
        self._leases[fragment] = lease

    def drop(self) -> None:
        """Let all copies of the last boundary go."""
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()

    def before_write(self) -> None:
        """Call before anything writes to the parameters: a copy still under way must see the old values."""
        if self._copied is not None:
            torch.cuda.current_stream(self._model.device).wait_event(self._copied)
            self._copied = None

    def _copy(self, fragment: int) -> Lease:
        lease = self._pool.lend(self._model.numel(fragment))
        if self._stream is None:
            self._read(fragment, lease.values)
            return lease
        self._stream.wait_stream(torch.cuda.current_stream(self._model.device))
        with torch.cuda.stream(self._stream):
            self._read(fragment, lease.values, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(self._stream)
        lease.ready = self._copied.synchronize
        return lease
