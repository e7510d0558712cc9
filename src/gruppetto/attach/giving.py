"""A learner's state as bytes: copied at one step boundary for others (:mod:`gruppetto.attach.taking` puts it in).

The bases are not copied: they are never written once they have been applied, and are held for as long as somebody
reads them. Optimizer state and buffers go into one buffer, which is used again while there are guests. On a GPU the
copy runs on a stream of its own; only the next write to the state waits for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from gruppetto.attach.expected_state import Kind
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.inner_state import InnerState, check_buffer_kinds, check_optimizer, gather
from gruppetto.errors import StateError
from gruppetto.protocol.learner import LearnerCore
from gruppetto.runtime.donation import ALIGN_BYTES, ITEM_BYTES, Cut, Manifest, NamedNumber, NamedTensor
from gruppetto.runtime.leases import Lease

__all__ = ["Giving", "aligned", "check_manifest", "dtype_named", "listed", "octets"]

MAX_SPARE = 2
"""Buffers kept for the next cut: as many as there can be guests with cuts of their own."""

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (getattr(torch, name) for name in ITEM_BYTES)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Giving:
    """Makes cuts of one learner. For the training thread, at a boundary."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, holdings: Holdings) -> None:
        self._model, self._optimizer, self._holdings = model, optimizer, holdings
        self._spare: list[Tensor] = []
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    def cut(self, core: LearnerCore, *, layout_hash: str) -> Cut:
        """The state of this moment. Raises :class:`StateError` if it has no plain form."""
        state = gather(self._model, self._optimizer)
        tensors, places, end = [], [], 0
        for part, name, key, tensor in listed(state):
            dtype = dtype_named(name, key, tensor)
            if type(tensor.data) is not Tensor:
                raise StateError(f"{name!r} keeps {key or 'a buffer'} as {tensor.dtype}", where="inner state")
            entry = NamedTensor(part=part, name=name, key=key, dtype=dtype, shape=tuple(tensor.shape), offset=end)
            tensors.append(entry)
            places.append(tensor)
            end = aligned(end + entry.payload_bytes)
        buffer = self._room(end)
        self._copy([_view(buffer, entry) for entry in tensors], places)
        segments, held = [(0, octets(buffer)[:end])], []
        for fragment, lease in self._holdings.hold_bases():
            held.append(lease)
            entry = NamedTensor(part="base", name=str(fragment), dtype="float32", shape=lease.values.shape, offset=end)
            tensors.append(entry)
            segments.append((end, lease.values.view(np.uint8).data))
            end = aligned(end + entry.payload_bytes)
        manifest = Manifest(
            cut=secrets.token_hex(8),
            run_id=core.run_id,
            layout_hash=layout_hash,
            fragmentation_hash=self._holdings.cut_hash,
            versions=core.held,
            optimizer=state.kind,
            tensors=tuple(tensors),
            numbers=tuple(NamedNumber(name=name, key=key, value=n) for (name, key), n in state.numbers.items()),
            total_bytes=end,
        )
        return self._made(manifest, segments, held, buffer)

    def _made(
        self,
        manifest: Manifest,
        segments: Sequence[tuple[int, memoryview]],
        held: Sequence[Lease],
        buffer: Tensor,
        *,
        released: Callable[[], None] = lambda: None,
    ) -> Cut:
        """A cut whose bytes are in ``buffer`` and in the bases ``held`` for it."""
        copied = self._copied

        def ready() -> None:
            if copied is not None:
                copied.synchronize()
            for lease in held:
                lease.ready()

        def release() -> None:
            for lease in held:
                lease.release()
            if len(self._spare) < MAX_SPARE:
                self._spare.append(buffer)
            released()

        return Cut(manifest, segments, ready=ready, release=release)

    def before_write(self) -> None:
        """The optimizer is about to write to its state: a copy still under way must see what was there."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
            self._copied = None

    def forget(self) -> None:
        """Nobody has asked for a while: the buffers go back to the system."""
        self._spare.clear()

    def _room(self, size: int) -> Tensor:
        while self._spare:
            buffer = self._spare.pop()
            if buffer.numel() >= size:
                return buffer
        return torch.empty(max(1, size), dtype=torch.uint8, pin_memory=self._on_gpu)

    @property
    def _on_gpu(self) -> bool:
        return self._holdings.model.on_one_gpu

    @torch.no_grad()
    def _copy(self, places: list[Tensor], tensors: list[Tensor]) -> None:
        if not tensors:
            return
        if not self._on_gpu:
            torch._foreach_copy_(places, tensors)
            return
        device = self._holdings.model.device
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            for place, tensor in zip(places, tensors, strict=True):
                place.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(self._stream)


def check_manifest(model: nn.Module, optimizer: torch.optim.Optimizer, manifest: Manifest, *, base_numel: int) -> None:
    """Whether what it lists is such as ``model`` and ``optimizer`` have; ``base_numel`` elements of bases.

    So the size of it is bounded by what is here already. Raises :class:`StateError`.
    """
    pieces = [(number.name, number.key, Kind()) for number in manifest.numbers]
    buffers, bases = {}, 0
    for entry in manifest.tensors:
        match entry.part:
            case "optimizer":
                pieces.append((entry.name, entry.key, Kind(shape=entry.shape, dtype=_DTYPES[entry.dtype])))
            case "buffer":
                buffers[entry.name] = (entry.shape, _DTYPES[entry.dtype])
            case _:
                bases += prod(entry.shape)
                if entry.dtype != "float32" or len(entry.shape) != 1:
                    raise StateError(f"its base {entry.name!r} is none", where="inner state")
    if bases != base_numel:
        raise StateError(f"its bases have {bases} elements, this model {base_numel}", where="inner state")
    check_optimizer(model, optimizer, manifest.optimizer, pieces)
    check_buffer_kinds(model, buffers)


def listed(state: InnerState) -> Iterator[tuple[str, str, str, Tensor]]:
    """(part, name, key, tensor) in the order of a manifest."""
    for (name, key), tensor in state.tensors.items():
        yield "optimizer", name, key, tensor
    for name, tensor in state.buffers.items():
        yield "buffer", name, "", tensor


def dtype_named(name: str, key: str, tensor: Tensor) -> str:
    """As a manifest has it. Raises :class:`StateError`."""
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise StateError(f"{name!r} keeps {key or 'a buffer'} as {tensor.dtype}", where="inner state")
    return dtype


def _view(buffer: Tensor, entry: NamedTensor) -> Tensor:
    flat = buffer[entry.offset : entry.offset + entry.payload_bytes]
    return flat.view(_DTYPES[entry.dtype]).view(entry.shape)


def octets(buffer: Tensor) -> memoryview:
    """Its memory."""
    data: memoryview = buffer.numpy().data
    return data


def aligned(offset: int) -> int:
    """Where the next tensor may begin."""
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES
