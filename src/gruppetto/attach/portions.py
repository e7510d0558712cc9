"""The ranks of one learner give its state away: each copies, and serves, what it supplies of every tensor.

The cut is the same for whoever takes it as that of a learner of one rank: whole tensors, end to end. Its bytes lie in
portions, at the rank that supplies them to the run too; no rank ever has the whole. Tensors that all ranks hold alike
are rank 0's, as in checkpoints, but for moments of replicated parameters, which they share out. What is placed in no
rows is gathered, one tensor at a time, by all ranks at that boundary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from gruppetto.attach.giving import Giving, aligned, dtype_named, listed, octets
from gruppetto.attach.holding import Hold
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.inner_state import gather
from gruppetto.attach.ranks import Ranks
from gruppetto.errors import StateError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.donation import ITEM_BYTES, Cut, Manifest, NamedNumber, NamedTensor, Portion
from gruppetto.runtime.leases import Lease

__all__ = ["GivingTogether"]

BASE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What each rank tells all others before it copies. Spans in bytes of the cut."""

    wrong: str
    address: str
    digest: str
    """Of everything that has to be the same on all ranks."""
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mine:
    """A tensor of the state, and the elements of it that this rank supplies."""

    entry: NamedTensor
    tensor: Tensor
    here: Hold | None
    """How it is held; None: whole, at every rank alike."""
    runs: Runs


class GivingTogether(Giving):
    """One rank's side of it. ``dropped`` is told, in whatever thread, of a cut that rank 0 keeps no longer."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        holdings: Holdings,
        ranks: Ranks,
        *,
        dropped: Callable[[str], None] = lambda name: None,
    ) -> None:
        super().__init__(model, optimizer, holdings)
        self._ranks, self._dropped = ranks, dropped

    def cut_portion(self, core: LearnerCore, name: str, *, address: str | None, layout_hash: str) -> Cut:
        """This rank's portion of a cut of this moment; at rank 0 with the manifest of all of it. Collective.

        ``address``: where this rank gives, None at rank 0, which is asked itself, and "" if it cannot. Raises
        :class:`StateError`, on all ranks, if the state of one has no plain form.
        """
        mine, bases, wrong, digest, end = list[_Mine](), list[NamedTensor](), "", "", 0
        numbers: tuple[NamedNumber, ...] = ()
        kind = ""
        try:
            state = gather(self._model, self._optimizer)
            kind = state.kind
            numbers = tuple(NamedNumber(name=n, key=key, value=v) for (n, key), v in state.numbers.items())
            for part, of, key, tensor in listed(state):
                mine.append(self._mine(part, of, key, tensor, end))
                end = aligned(end + mine[-1].entry.payload_bytes)
            for p in range(self._holdings.model.num_fragments):
                bases.append(self._base(p, end))
                end = aligned(end + bases[-1].payload_bytes)
            everything = msgspec.msgpack.encode(([one.entry for one in mine], bases, kind, core.held))
            digest = hashlib.blake2b(everything, digest_size=16).hexdigest()
        except StateError as found:
            wrong = str(found)
        spans = tuple(span for one in mine for span in _spans(one.entry, one.runs, ITEM_BYTES[one.entry.dtype]))
        for p, entry in enumerate(bases):
            share = self._holdings.share(Fragment(p))
            assert share is not None
            spans += tuple(_spans(entry, share.supplied, BASE_BYTES))
        portions = self._portions(_Said(wrong=wrong, address=address or "", digest=digest, spans=spans))
        buffer, segments = self._copied_portion(mine)
        held = list[Lease]()
        for (fragment, lease), entry in zip(self._holdings.hold_bases(), bases, strict=True):
            held.append(lease)
            segments += self._segments_of(fragment, lease, entry)
        manifest = Manifest(
            cut=name,
            run_id=core.run_id,
            layout_hash=layout_hash,
            fragmentation_hash=self._holdings.cut_hash,
            versions=core.held,
            optimizer=kind,
            tensors=(*(one.entry for one in mine), *bases),
            numbers=numbers,
            total_bytes=end,
            portions=portions,
        )
        return self._made(manifest, segments, held, buffer, released=lambda: self._dropped(name))

    def wait_for_all(self) -> None:
        """Until all ranks have come here."""
        self._ranks.everybody(b".")

    def _portions(self, own: _Said) -> tuple[Portion, ...]:
        said = [msgspec.msgpack.decode(data, type=_Said) for data in self._ranks.everybody(msgspec.msgpack.encode(own))]
        for rank, one in enumerate(said):
            why = one.wrong or ("it keeps other state than rank 0" if one.digest != said[0].digest else "")
            why = why or ("it cannot listen where it was to give" if rank and not one.address else "")
            if why:
                raise StateError(f"rank {rank}: {why}", where="inner state")
        return tuple(Portion(address=one.address, spans=one.spans) for one in said if one.spans)

    def _mine(self, part: str, name: str, key: str, tensor: Tensor, offset: int) -> _Mine:
        dtype = dtype_named(name, key, tensor)
        shape = tuple(tensor.shape)
        entry = NamedTensor(part=part, name=name, key=key, dtype=dtype, shape=shape, offset=offset)
        here = self._holdings.model.hold_of(name, tensor) if part == "optimizer" else None
        if here is not None:
            return _Mine(entry=entry, tensor=tensor, here=here, runs=self._holdings.model.supplied(name))
        if type(tensor.data) is not Tensor:
            raise StateError(f"{name!r} keeps {key or 'a buffer'} placed in another way than itself", where="state")
        return _Mine(
            entry=entry, tensor=tensor, here=None, runs=Runs.of([(0, prod(shape))] if self._ranks.leads else [])
        )

    def _base(self, fragment: int, offset: int) -> NamedTensor:
        cut = self._holdings.model.fragmentation
        assert cut is not None
        shape = (cut.fragments[fragment].numel,)
        return NamedTensor(part="base", name=str(fragment), dtype="float32", shape=shape, offset=offset)

    @torch.no_grad()
    def _copied_portion(self, mine: Sequence[_Mine]) -> tuple[Tensor, list[tuple[int, memoryview]]]:
        """A buffer with what this rank supplies, and which bytes of the cut each part of it is."""
        sizes = [one.runs.numel * ITEM_BYTES[one.entry.dtype] for one in mine]
        buffer = self._room(sum(aligned(size) for size in sizes))
        data, segments, at = octets(buffer), list[tuple[int, memoryview]](), 0
        places, sources = list[Tensor](), list[Tensor]()
        for one, size in zip(mine, sizes, strict=True):
            gathers = one.here is not None and one.here.gathers
            if size or gathers:
                flat = one.tensor.reshape(-1) if one.here is None else one.here.flat(one.tensor)
                held = Runs.of([(0, flat.numel())]) if one.here is None else one.here.runs
                start = at
                for (first, last), (low, high) in zip(one.runs, _places(one.runs, held), strict=True):
                    stop = start + (last - first) * ITEM_BYTES[one.entry.dtype]
                    place = buffer[start:stop].view(one.tensor.dtype)
                    segments.append((one.entry.offset + first * ITEM_BYTES[one.entry.dtype], data[start:stop]))
                    start = stop
                    if gathers:  # let go of it before the next one comes
                        place.copy_(flat[low:high])
                    else:
                        places.append(place)
                        sources.append(flat[low:high])
            at += aligned(size)
        self._copy(places, sources)
        return buffer, segments

    def _segments_of(self, fragment: Fragment, lease: Lease, entry: NamedTensor) -> list[tuple[int, memoryview]]:
        share = self._holdings.share(fragment)
        assert share is not None
        return [
            (entry.offset + first * BASE_BYTES, lease.values[low:high].view(np.uint8).data)
            for (first, _), (low, high) in zip(share.supplied, _places(share.supplied, share.held), strict=True)
        ]


def _spans(entry: NamedTensor, runs: Runs, item_bytes: int) -> list[tuple[int, int]]:
    return [(entry.offset + start * item_bytes, entry.offset + stop * item_bytes) for start, stop in runs]


def _places(runs: Runs, held: Runs) -> list[tuple[int, int]]:
    """Where each of these runs lies in the vector that holds ``held``: in one place, as no run of theirs is broken."""
    return [bounds for run in runs for bounds in Runs.of([run]).within(held)]
