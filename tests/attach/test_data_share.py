"""Which ranks take data of their own, as far as the model shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed.fsdp  # noqa: F401 - it is looked for where it has been imported
from tests.attach.test_blocks import rank_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from gruppetto.attach.data_share import share_of
from gruppetto.errors import SettingError


def test_replicas_and_rows_have_one_each_and_what_cannot_be_seen_is_asked() -> None:
    ranks: Any = SimpleNamespace(rank=1, size=2)
    assert share_of(nn.Linear(2, 2), None) == (0, 1)
    assert share_of(nn.Linear(2, 2), ranks) == (1, 2)
    with rank_of(1, (2,)) as mesh:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert share_of(model, ranks) == (1, 2)
        columns = parallelize_module(nn.Sequential(nn.Linear(2, 2)), mesh, {"0": ColwiseParallel()})
        with pytest.raises(SettingError, match="which ranks of this model train on the same data"):
            share_of(columns, ranks)
    with rank_of(1, (2, 2)) as mesh:
        hybrid = fully_shard(nn.Linear(2, 2), mesh=mesh)
        with pytest.raises(SettingError, match="cannot be seen; pass share="):
            share_of(hybrid, SimpleNamespace(rank=1, size=4))  # type: ignore[arg-type]
