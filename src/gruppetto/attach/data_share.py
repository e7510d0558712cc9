"""Which share of its slot's items a rank takes: where ranks train on different data, each its own."""

from __future__ import annotations

import sys

from torch import nn

from gruppetto.attach.holding import is_distributed
from gruppetto.attach.ranks import Ranks
from gruppetto.errors import SettingError

__all__ = ["share_of"]


def share_of(model: nn.Module, ranks: Ranks | None) -> tuple[int, int]:
    """(which, of how many): of a model that is replicated, or sharded by FSDP2 over one dimension, every rank has one.

    How ranks share data is otherwise not to be seen in the model: those of one tensor-parallel group take the same.
    Raises :class:`SettingError` then.
    """
    if ranks is None:
        return 0, 1
    fsdp = sys.modules.get("torch.distributed.fsdp")
    spread = {id(p) for p in model.parameters() if is_distributed(p.detach())}
    by_fsdp: set[int] = set()
    for module in model.modules():
        if fsdp is not None and isinstance(module, fsdp.FSDPModule):
            meshes = ((id(p), p.device_mesh.ndim) for p in module.parameters() if id(p) in spread)
            by_fsdp |= {one for one, ndim in meshes if ndim == 1}
    if spread - by_fsdp:
        raise SettingError(
            "which ranks of this model train on the same data cannot be seen",
            where="data.slots",
            fix="pass share=(number, how many) as its data-parallel group has it; with tensor parallelism alone (0, 1)",
        )
    return ranks.rank, ranks.size
