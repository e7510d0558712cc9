"""What a learner takes of another one's state: all of it, or what one of its ranks holds.

A peer's tensors are those of the whole model, whatever number of ranks has them. A rank asks for the rows that it has
of a parameter's moments (of blocks that are no rows, for the rows they lie in), for its runs of every base, and for all
of what has another shape: step counts, tables, buffers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gruppetto.attach.expected_state import check_values
from gruppetto.attach.holding import Hold
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.inner_state import InnerState, check_buffers, put_buffers, put_optimizer, undoing
from gruppetto.errors import GruppettoError, StateError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.donors import Source
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.companions import lacking
from gruppetto.runtime.donation import ITEM_BYTES, Manifest, NamedTensor, decode_manifest
from gruppetto.runtime.joining import Fetched, Visit
from gruppetto.runtime.orders import Begin, Fetch
from gruppetto.runtime.spans import Needs

__all__ = ["Taking", "Took", "needs_of", "put_in", "took"]

log = logging.getLogger("gruppetto.learner")

JOIN_S = 2.0
"""For the thread of an errand to end. It is a daemon, and holds nothing."""
COUNT = "step"
"""Kept as a plain number or tensor by every optimizer, of whatever shape a parameter is."""

_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """A peer's state as this rank holds it, every value looked at. ``bases``: by fragment, this rank's runs."""

    inner: InnerState
    bases: dict[Fragment, NDArray[np.float32]]


def needs_of(holdings: Holdings, manifest: Manifest) -> Needs:
    """What of it is wanted here. Raises :class:`StateError` for a state that this learner could not cut up."""
    return [_needed(holdings, entry) for entry in manifest.tensors]


def _needed(holdings: Holdings, entry: NamedTensor) -> Runs:
    item = ITEM_BYTES[entry.dtype]
    if entry.part == "base":
        share = holdings.share(_fragment(holdings, entry))
        held = Runs.of([(0, entry.payload_bytes // item)]) if share is None else share.held
    else:
        here = _placed(holdings, entry)
        held = Runs.of([(0, entry.payload_bytes // item)]) if here is None else here.needed
    return Runs(tuple((start * item, stop * item) for start, stop in held))


def _fragment(holdings: Holdings, entry: NamedTensor) -> Fragment:
    cut, p = holdings.model.fragmentation, int(entry.name) if entry.name.isdecimal() and len(entry.name) < 9 else -1
    if cut is None or not 0 <= p < cut.num_fragments or entry.shape != (cut.fragments[p].numel,):
        raise StateError(f"its base {entry.name!r:.40} is none of this run", where="inner state")
    return Fragment(p)


def _placed(holdings: Holdings, entry: NamedTensor) -> Hold | None:
    """How what is made of it is held; None: whole, at every rank."""
    if entry.part != "optimizer" or entry.key == COUNT:
        return None
    here = holdings.model.hold_named(entry.name, entry.shape)
    if here is None and len(entry.shape) and holdings.model.is_spread(entry.name):
        raise StateError(
            f"its {entry.key} of {entry.name!r} is {entry.shape}, which cannot be cut as this parameter is",
            where="inner state",
        )
    return here


def took(model: nn.Module, holdings: Holdings, fetched: Fetched) -> Took:
    """What was fetched, as tensors. Raises :class:`StateError` for values that no training brings about."""
    manifest = fetched.manifest
    inner, bases = InnerState(kind=manifest.optimizer), dict[Fragment, NDArray[np.float32]]()
    for entry in manifest.tensors:
        octets = fetched.octets(entry)
        if entry.part == "base":
            values = octets.view(np.float32)
            check_values(entry.name, "base", torch.from_numpy(values))
            bases[_fragment(holdings, entry)] = values
            continue
        flat = torch.from_numpy(octets).view(_DTYPES[entry.dtype])
        here = _placed(holdings, entry)
        tensor = flat.view(entry.shape) if here is None else here.place(flat)
        if entry.part == "buffer":
            inner.buffers[entry.name] = tensor
        else:
            check_values(entry.name, entry.key, tensor)
            inner.tensors[entry.name, entry.key] = tensor
    inner.numbers.update({(number.name, number.key): number.value for number in manifest.numbers})
    for (name, key), value in inner.numbers.items():
        check_values(name, key, value)
    if len(bases) != holdings.model.num_fragments:
        raise StateError("it does not hold every fragment", where="inner state")
    check_buffers(model, inner.buffers)
    return Took(inner=inner, bases=bases)


def put_in(model: nn.Module, optimizer: torch.optim.Optimizer, state: InnerState) -> None:
    """Go on with a peer's optimizer state and buffers. Raises :class:`StateError` if they do not fit."""
    put_optimizer(model, optimizer, state)
    put_buffers(model, state.buffers)


class Taking:
    """A rank that follows: it fetches its part of what rank 0 has found, and puts it in when all ranks have theirs.

    ``visit`` goes to a donor with these checks and needs. Called by the training thread, but for the thread of an
    errand.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        holdings: Holdings,
        *,
        rank: int,
        visit: Callable[[Donor], Visit],
    ) -> None:
        self._model, self._optimizer, self._holdings, self._rank = model, optimizer, holdings, rank
        self._visit = visit
        self._lock = threading.Lock()
        self._errand = self._done = self._failed = 0
        self._took: Took | None = None
        self._undo: Callable[[], None] | None = None
        self._stop: Callable[[], None] = _nothing
        self._thread: threading.Thread | None = None

    @property
    def standing(self) -> tuple[int, int]:
        """The last errand that it has done, and that it could not do."""
        with self._lock:
            return self._done, lacking(self._failed, self._rank) if self._failed else 0

    def fetch(self, order: Fetch) -> None:
        """Go on this errand, and forget the one before."""
        self._forget()
        with self._lock:
            self._errand = order.number
        self._thread = threading.Thread(target=self._go, args=(order,), name="gruppetto-taking", daemon=True)
        self._thread.start()

    def begin(self, order: Begin, from_checkpoint: Callable[[], None]) -> None:
        """Begin from what the last errand has brought, or from a checkpoint. If that cannot be, everything is as
        before, and the next boundary tells rank 0."""
        with self._lock:
            taken = self._took
        self._forget()  # an errand still under way would speak of itself as the last
        try:
            if self._optimizer is None:
                raise StateError("this rank was attached without an optimizer", where="Learner")
            self._undo = undoing(self._model, self._optimizer)
            if order.source == Source.PEER.value:
                assert taken is not None, "rank 0 speaks of what all ranks have"
                put_in(self._model, self._optimizer, taken.inner)
            else:
                from_checkpoint()
        except Exception as wrong:  # of whatever kind, it ends nobody
            log.warning("rank %d: cannot begin as the others have: %s", self._rank, _words(wrong))
            self.undo()
            with self._lock:
                self._failed = order.number
        else:
            with self._lock:
                self._done = order.number
        for fragment, values in taken.bases.items() if taken is not None and order.versions else ():
            lease = self._holdings.lend(fragment)
            lease.values[:] = values
            self._holdings.found(fragment, order.versions[fragment], lease)

    def undo(self) -> None:
        """Of what was put in last, or fetched, nothing is left: not all ranks could do it."""
        self._forget()
        if self._undo is not None:
            self._undo()

    def close(self) -> None:
        """Whatever is under way ends, and what has come is forgotten."""
        self._forget()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _forget(self) -> None:
        with self._lock:
            self._errand, self._took = 0, None
            stop, self._stop = self._stop, _nothing
        stop()

    def _go(self, order: Fetch) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._fetch(order))

    async def _fetch(self, order: Fetch) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop() -> None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(task.cancel)

        with self._lock:
            if self._errand != order.number:
                return
            self._stop = stop
        try:
            manifest = decode_manifest(order.manifest)
            if self._optimizer is None:
                raise StateError("this rank was attached without an optimizer", where="Learner")
            fetched = await self._visit(order.donor).fetch_part(manifest)
            found = took(self._model, self._holdings, fetched)
        except Exception as wrong:  # of whatever kind: it costs this source, for all ranks
            with self._lock:
                current = self._errand == order.number
                self._failed = order.number if current else self._failed
            if current:
                log.warning("rank %d: no state from %s: %s", self._rank, order.donor.learner, _words(wrong))
            return
        with self._lock:
            if self._errand == order.number:
                self._took, self._done = found, order.number


def _words(wrong: Exception) -> str:
    return str(wrong) if isinstance(wrong, GruppettoError) else f"{type(wrong).__name__}: {wrong}"


def _nothing() -> None:
    pass
