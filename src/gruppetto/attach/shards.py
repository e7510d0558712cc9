"""A checkpoint that the ranks of a learner write together: each its own blocks, in one directory that all of them see.

::

    DIRECTORY/NAME/  shard-00001-model-00001-of-00001.safetensors  shard-00002-...  learner.json

This is the form of ``torch.distributed.checkpoint``'s safetensors, in which every file says where its blocks lie in the
whole tensors: any number of ranks, one too, reads it, with its ``HuggingFaceStorageReader`` or with
:meth:`gruppetto.Checkpoints.load`. Nothing is agreed upon while it is written: when a rank's file is durable it says so
in a small file beside it, and rank 0, which waits for these, gives the directory its name.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from torch import Tensor, nn

from gruppetto.attach.holding import is_distributed
from gruppetto.attach.sharding import plain_name
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.durable import force_directory, force_file, write_durably

__all__ = ["Blocks", "blocks_of", "gather_files", "room_like", "write_blocks"]

Blocks = dict[str, tuple[Tensor, tuple[int, ...]]]
"""By key: what is here of a tensor, and where it begins in the whole."""
Files = dict[str, tuple[int, str]]
"""Size and digest by name."""

PATIENCE_S = 600.0
"""For the slowest rank's file."""
LOOK_S = 0.05
WHERE = "DCP_SHARDING_INFO"
"""Under this name distributed checkpoints look for the offsets."""


def blocks_of(tensors: Mapping[str, Tensor], *, leads: bool) -> Blocks:
    """What this rank writes. Of what several ranks hold alike one writes it; of a plain tensor that is rank 0."""
    found: Blocks = {}
    for key, tensor in tensors.items():
        if not is_distributed(tensor):
            if leads:
                found[key] = tensor.detach(), (0,) * tensor.ndim
            continue
        data: Any = tensor.detach()
        places = zip(data.placements, data.device_mesh.get_coordinate(), strict=True)
        (chunk,) = data.__create_chunk_list__()
        if all(at == 0 for placement, at in places if placement.is_replicate()) and data.to_local().numel():
            found[key] = data.to_local(), tuple(chunk.offsets)
    return found


def room_like(model: nn.Module, key: str, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Room for a tensor of a checkpoint of this model: distributed as the parameter is that it belongs to."""
    name = key.partition(".")[2]
    name = name.partition(":")[2] if key.startswith("optimizer.") else name
    name = name.removeprefix("base.").removeprefix("rest.") if key.startswith("learner.") else name
    own = {} if key.startswith(("buffer.", "extra.")) else {plain_name(n): p for n, p in model.named_parameters()}
    parameter = own.get(name)
    if parameter is None or not is_distributed(parameter.detach()) or tuple(parameter.shape) != tuple(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.empty_like(parameter.detach(), dtype=dtype)


def write_blocks(working: Path, blocks: Blocks, *, rank: int, session: str, digest: Callable[[Path], str]) -> None:
    """Make this rank's file durable, and then say so. Raises OSError."""
    working.mkdir(parents=True, exist_ok=True)
    name = f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
    files: Files = {}
    if blocks:
        where = {key: {"saved_offsets": list(offsets)} for key, (_, offsets) in blocks.items()}
        tensors = {key: tensor.contiguous() for key, (tensor, _) in blocks.items()}
        facts = {WHERE: json.dumps(where), "DCP_VERSION": "1.0", "format": "pt"}
        safetensors.torch.save_file(tensors, working / name, metadata=facts)
        force_file(working / name)
        files[name] = (working / name).stat().st_size, digest(working / name)
    write_durably(working / _note(rank, session), [msgspec.json.encode(files)])


def gather_files(working: Path, *, size: int, session: str, clock: Clock | None = None) -> Files:
    """At rank 0: wait until all ranks have written, and return their files, of which the directory then consists.

    Raises OSError when one does not.
    """
    now = (clock or MonotonicClock()).now
    began, pause, files = now(), threading.Event(), Files()
    for rank in range(size):
        note = working / _note(rank, session)
        while not note.exists():
            if now() - began >= PATIENCE_S:
                raise OSError(f"the part of rank {rank} has not come; all ranks have to see one directory")
            pause.wait(LOOK_S)
        files |= msgspec.json.decode(note.read_bytes(), type=Files)
    for path in working.iterdir():
        if path.name not in files:  # notes, and what an attempt before has left
            path.unlink()
    force_directory(working)
    return files


def _note(rank: int, session: str) -> str:
    return f"rank-{rank}-{session}.json"
