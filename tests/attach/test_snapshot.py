from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.snapshot import Snapshots, pool_for
from gruppetto.numerics import fragment
from gruppetto.runtime.leases import LeasePool


def snapshots_of(model: nn.Module) -> tuple[FlatModel, LeasePool, Snapshots]:
    flat = FlatModel(model)
    flat.cut(fragment(flat.layout, 3))
    pool = pool_for(flat)
    return flat, pool, Snapshots(flat, pool)


def double(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)


def test_a_snapshot_is_the_model_at_its_boundary(toy: Callable[..., nn.Module]) -> None:
    model = toy()
    flat, _, snapshots = snapshots_of(model)
    expected = np.empty(flat.numel(1), np.float32)
    flat.read(1, expected)
    snapshots.take([1])
    double(model)
    np.testing.assert_array_equal(snapshots.get(1).values, expected)


def test_a_buffer_in_use_survives_any_number_of_boundaries(toy: Callable[..., nn.Module]) -> None:
    model = toy()
    _, pool, snapshots = snapshots_of(model)
    snapshots.take([0, 1, 2])
    in_use = snapshots.get(0).hold()
    kept = in_use.values.copy()
    addresses = set()
    for _ in range(5):
        double(model)
        snapshots.take([0, 1, 2])
        addresses |= {snapshots.get(p).values.ctypes.data for p in range(3)}
    np.testing.assert_array_equal(in_use.values, kept)
    assert in_use.values.ctypes.data not in addresses
    in_use.release()
    assert pool.lend(in_use.values.size).values.ctypes.data == in_use.values.ctypes.data, "let go, it is used again"


def test_the_copies_of_the_last_boundary_are_replaced(toy: Callable[..., nn.Module]) -> None:
    _, _, snapshots = snapshots_of(toy())
    snapshots.take([0, 1])
    snapshots.take([2])
    assert set(snapshots._leases) == {2}
