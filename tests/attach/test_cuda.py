"""On a GPU: snapshots run beside the next step, and neither they nor an arrived fragment make the host wait.

Skipped where there is none; nothing of it has run anywhere yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gruppetto
from gruppetto.attach.apply import overwrite
from gruppetto.attach.sharding import FlatModel
from gruppetto.attach.snapshot import Snapshots, pool_for
from gruppetto.numerics.fragments import fragment

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the GPU raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def cut(flat: FlatModel) -> None:
    flat.cut(fragment(flat.layout, 2, merge_of=lambda name: "mean"))


@pytest.mark.usefixtures("no_waiting")
def test_a_snapshot_is_of_its_boundary_though_the_next_step_has_begun(toy: Callable[..., Any]) -> None:
    model = toy().cuda()
    flat = FlatModel(model)
    cut(flat)
    pool = pool_for(flat)
    assert torch.from_numpy(pool.lend(4).values).is_pinned()
    snapshots = Snapshots(flat, pool)
    for round in range(20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(round)
        snapshots.take(range(2))
        snapshots.before_write()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(-1)
        torch.cuda.set_sync_debug_mode("default")
        for p in range(2):
            snapshots.get(p).ready()
            assert (snapshots.get(p).values == round).all()
        torch.cuda.set_sync_debug_mode("error")


@pytest.mark.usefixtures("no_waiting")
def test_what_arrives_is_written_without_waiting(toy: Callable[..., Any]) -> None:
    flat = FlatModel(toy().cuda())
    cut(flat)
    pool = pool_for(flat)
    leases = [pool.lend(flat.numel(p)) for p in range(2)]
    for lease in leases:
        lease.values[:] = np.arange(lease.values.size)
    for p, lease in enumerate(leases):
        overwrite(flat, p, lease)
    torch.cuda.set_sync_debug_mode("default")
    for p, lease in enumerate(leases):
        found = np.empty_like(lease.values)
        flat.read(p, found)
        np.testing.assert_array_equal(found, lease.values)


def test_in_lock_step_a_learner_on_a_gpu_is_plain_adamw(syncer: Callable[..., Any], toy: Callable[..., Any]) -> None:
    setting = {"num_fragments": 2, "sync_period": 2, "overlap_steps": 0, "outer": "finetune", "uplink": "fp32"}
    running = syncer(rounds=10, **setting)
    here, alone = toy().cuda(), toy().cuda()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (here, alone)]
    with gruppetto.Learner(
        here, optimizers[0], syncer=running.url, tokens_per_step=16, max_run_ahead=0, quiet=True
    ) as learner:
        for index in learner.until_finished(itertools.count()):
            for model, optimizer in zip((here, alone), optimizers, strict=True):
                model(*(part.cuda() for part in model.batch(index))).backward()
                optimizer.step()
                optimizer.zero_grad()
            for a, b in zip(here.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
