"""Elements of parameters that lie in one place in memory.

Such an element would be two of the run's: each has a base of its own, and what is written for one is taken for work
that was done on the other. Views of one storage that share nothing (columns of one matrix, weights laid end to end)
are fine. Strides alone do not tell: where they leave it open, elements are marked.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["shared_elements"]


def shared_elements(tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Two names (or one, twice) of strided tensors that have an element in common; None if there are none.

    >>> whole = torch.zeros(4, 6)
    >>> shared_elements({"left": whole[:, :3], "right": whole[:, 3:]})
    >>> shared_elements({"left": whole[:, :3], "right": whole[:, 2:]})
    ('left', 'right')
    """
    by_storage: dict[tuple[torch.device, int], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            by_storage.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append(name)
    for names in by_storage.values():
        for together in _clusters(names, tensors):
            if (found := _look_at(together, tensors)) is not None:
                return found
    return None


def _clusters(names: list[str], tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Those of one storage, parted wherever one begins behind the end of all before it."""
    found: list[list[str]] = []
    end = -1
    for first, stop, name in sorted((*_span(tensors[name]), name) for name in names):
        if first >= end:
            found.append([])
        found[-1].append(name)
        end = max(end, stop)
    return found


def _span(tensor: Tensor) -> tuple[int, int]:
    """Bytes of the storage from its first element to behind its last."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset()) * tensor.itemsize
    return first, first + (last + 1) * tensor.itemsize


def _look_at(names: list[str], tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Of tensors whose spans run into each other."""
    if len(names) == 1 and _is_plain(tensors[names[0]]):
        return None
    unit = min(tensors[name].itemsize for name in names)
    first = min(_span(tensors[name])[0] for name in names)
    stop = max(_span(tensors[name])[1] for name in names)
    owner = torch.full(((stop - first) // unit,), -1, dtype=torch.int32)
    for number, name in enumerate(names):
        places = _places(tensors[name], first, unit)
        before = int(owner[places].max())
        if before >= 0:
            return names[before], name
        owner[places] = number
        if len(torch.unique(places)) < places.numel():
            return name, name
    return None


def _is_plain(tensor: Tensor) -> bool:
    """Each step of a dimension goes beyond all that the smaller ones reach, so no two elements meet."""
    reach = 0
    for step, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True


def _places(tensor: Tensor, first: int, unit: int) -> Tensor:
    """All that its elements cover, in units of so many bytes behind the byte ``first`` of the storage."""
    found = torch.tensor([tensor.storage_offset()])
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        found = (found[:, None] + torch.arange(size) * step).flatten()
    wide = tensor.itemsize // unit
    return ((found * tensor.itemsize - first) // unit)[:, None] + torch.arange(wide)
