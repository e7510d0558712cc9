"""The reference trainer as one learner of several ranks: started by ``torchrun``, sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gruppetto.attach.rendezvous import init_process_group
from gruppetto.errors import SettingError
from gruppetto.train.batches import Batches

__all__ = ["Place", "gather_place", "shard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which of how many ranks this process is."""

    rank: int = 0
    size: int = 1

    def part_of(self, batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's rows of each batch: all ranks together train on what a learner of one rank would.

        Raises :class:`SettingError` if the rows cannot be shared evenly: the mean over ranks would be another one.
        """
        if batches.batch_size % self.size:
            raise SettingError(
                f"is {batches.batch_size}, which {self.size} ranks cannot share evenly",
                where="train.batch_size",
                fix=f"use a multiple of {self.size}",
            )
        rows = batches.batch_size // self.size
        mine = slice(self.rank * rows, (self.rank + 1) * rows)
        return ((input_ids[mine], labels[mine]) for input_ids, labels in batches)


def gather_place() -> Place:
    """Join the other ranks, if ``torchrun`` has started this process; alone otherwise."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        return Place()
    if not dist.is_initialized():
        init_process_group("gloo")
    return Place(rank=dist.get_rank(), size=dist.get_world_size())


def shard(model: nn.Module) -> None:
    """Spread the model over all ranks, block by block."""
    from torch.distributed.fsdp import fully_shard

    from gruppetto.train.llama import Block, CausalOutput

    # What comes out of the model has to be looked into: its backward pass begins there.
    torch.export.register_dataclass(CausalOutput)
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
