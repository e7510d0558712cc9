from __future__ import annotations

import pytest
import torch
from torch import nn

from gruppetto.attach.rewarm import Rewarm


def test_a_scheduler_never_sees_it() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    rewarm, moved = Rewarm(optimizer, steps=2), []
    for _ in range(4):
        parameter.grad = torch.ones(3)
        before = parameter.detach().clone()
        rewarm.before_step()
        optimizer.step()
        rewarm.after_step()
        scheduler.step()
        moved.append(float((before - parameter.detach())[0]))
    assert moved == pytest.approx([1 / 3, 2 / 3 * 0.5, 0.25, 0.125])


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    """It may be part of a captured graph."""
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=rate, foreach=False)
    mine = optimizer.param_groups[0]["lr"]
    rewarm = Rewarm(optimizer, steps=1)
    rewarm.before_step()
    assert optimizer.param_groups[0]["lr"] is mine and float(mine) == 0.25
    rewarm.after_step()
    assert optimizer.param_groups[0]["lr"] is mine and float(mine) == 0.5


def test_a_step_that_raises_leaves_no_trace() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    rewarm = Rewarm(optimizer, steps=3)
    rewarm.before_step()
    rewarm.before_step()
    assert optimizer.param_groups[0]["lr"] == 0.25, "of the true rate, once"
    rewarm.after_step()
    assert optimizer.param_groups[0]["lr"] == 1.0 and rewarm.factor == 0.5


def test_without_an_optimizer_it_only_counts() -> None:
    rewarm = Rewarm(None, steps=1)
    rewarm.before_step()
    rewarm.after_step()
    assert rewarm.factor == 1.0
