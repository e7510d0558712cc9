"""Distributed parameters (``DTensor``): the block of each that lies at this rank.

Where the blocks are some of the tensor's rows, whole (``Shard(0)``, ``Replicate``, and what comes of both together), a
block is read and written in place. Any other block (``Shard(1)``) is no run of elements: the tensor is gathered to be
read, on all ranks at once, each keeps a base of all of it, and its own block is cut out of what comes.

Imported only where there is such a parameter: ``torch.distributed.tensor`` takes most of a second.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from gruppetto.attach.holding import Hold
from gruppetto.errors import LayoutError
from gruppetto.numerics.fragments import Piece
from gruppetto.numerics.runs import Runs

__all__ = ["hold_block", "meshes_of"]


class _Block(Hold):
    """A distributed parameter of which some whole rows are here."""

    def __init__(self, parameter: nn.Parameter, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.parameter, self.shape = parameter, sizes
        self._offsets = offsets
        row_numel = _numel(tuple(parameter.shape[1:]))
        first = offsets[0] * row_numel if offsets else 0
        self.runs = Runs.of([(first, first + _numel(sizes))])

    @property
    def _data(self) -> DTensor:
        data = self.parameter.detach()
        assert isinstance(data, DTensor)
        return data

    def is_whole(self, piece: Piece) -> bool:
        return False

    def own(self) -> Tensor:
        data = self._data
        local: Tensor = data.to_local()
        return local

    def to_global(self, tensor: Tensor) -> Tensor:
        data = self._data
        return DTensor.from_local(
            tensor.to(data.device),
            data.device_mesh,
            data.placements,
            run_check=False,
            shape=data.shape,
            stride=data.stride(),
        )

    def to_local(self, tensor: Tensor) -> Tensor:
        data = self._data
        if isinstance(tensor, DTensor):
            if tensor.device_mesh == data.device_mesh and tensor.placements == data.placements:
                return tensor.to_local()
            tensor = tensor.full_tensor()
        return tensor[self._block] if self._offsets else tensor

    def flat(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, DTensor)
        local: Tensor = tensor.to_local()
        return local.reshape(-1)

    @property
    def _block(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + size) for o, size in zip(self._offsets, self._sizes, strict=True))

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.shape


class _Gathered(_Block):
    """A distributed parameter of which another block is here."""

    gathers = True

    def __init__(self, parameter: nn.Parameter, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.parameter, self.shape = parameter, tuple(parameter.shape)
        self._offsets, self._block_sizes = offsets, sizes
        self.runs = Runs.of([(0, parameter.numel())])

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self._block_sizes

    def read(self) -> Tensor:
        data = self._data
        return data.full_tensor()

    def write_rows(self, start: int, values: Tensor) -> None:
        """Take the rows of this block from ``values``, whole rows that begin at element ``start``."""
        rest = self.shape[1:]
        rows = values.view(-1, *rest)
        first = start // _numel(rest)
        begin = max(first, self._offsets[0])
        end = min(first + rows.shape[0], self._offsets[0] + self._sizes[0])
        if begin < end:
            mine = rows[begin - first : end - first][(slice(None), *self._block[1:])]
            self.own()[begin - self._offsets[0] : end - self._offsets[0]].copy_(mine)

    def to_global(self, tensor: Tensor) -> Tensor:
        return super().to_global(tensor[self._block].contiguous())

    @property
    def needed(self) -> Runs:
        row = _numel(tuple(self.shape[1:]))
        first, rows = self._offsets[0], self._sizes[0] if _numel(self._sizes) else 0
        return Runs.of([(first * row, (first + rows) * row)])

    def place(self, values: Tensor) -> Tensor:
        if not _numel(self._sizes):
            return super().to_global(values.new_empty(self._sizes))
        rows = values.view(self._sizes[0], *self.shape[1:])
        return super().to_global(rows[(slice(None), *self._block[1:])].contiguous())

    def flat(self, tensor: Tensor) -> Tensor:
        """Collective."""
        assert isinstance(tensor, DTensor)
        return tensor.full_tensor().reshape(-1)

    def to_local(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def hold_block(name: str, parameter: nn.Parameter) -> Hold:
    """How this rank holds a distributed parameter. Raises :class:`LayoutError` for one that is in no plain blocks."""
    data, where = parameter.detach(), f"parameter {name!r}"
    assert isinstance(data, DTensor)
    if any(isinstance(placement, Partial) for placement in data.placements):
        raise LayoutError(
            f"is placed as {data.placements}, a sum that has not been taken",
            where=where,
            fix="redistribute it to Shard or Replicate before it is attached",
        )
    # As distributed checkpoints ask for it.
    chunks = data.__create_chunk_list__()  # type: ignore[no-untyped-call]
    sizes = tuple(chunks[0].sizes) if len(chunks) == 1 else ()
    if len(chunks) != 1 or _numel(sizes) != data.to_local().numel():
        raise LayoutError(
            f"is placed as {data.placements}, which is not one block at each rank",
            where=where,
            fix="use Shard or Replicate",
        )
    return (_Block if _is_of_rows(data) else _Gathered)(parameter, tuple(chunks[0].offsets), sizes)


def meshes_of(model: nn.Module) -> list[tuple[int, ...]]:
    """The ranks, in the default group, of every mesh that the parameters are spread over."""
    distributed = [data for data in (p.detach() for p in model.parameters()) if isinstance(data, DTensor)]
    return sorted({tuple(data.device_mesh.mesh.flatten().tolist()) for data in distributed})


def _is_of_rows(data: DTensor) -> bool:
    """The block at every rank is some whole rows. From the placements alone, so that all ranks say the same."""
    dims = [(p, size) for p, size in zip(data.placements, data.device_mesh.shape, strict=True) if size > 1]
    if any(not isinstance(p, Replicate) and getattr(p, "dim", None) != 0 for p, _ in dims):
        return False
    # Sharded over several dimensions of the mesh, uneven shares are no longer one after the other.
    shards = [size for p, size in dims if not isinstance(p, Replicate)]
    return len(shards) < 2 or (data.ndim > 0 and data.shape[0] % prod(shards) == 0)


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
