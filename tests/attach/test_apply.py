from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gruppetto.attach import apply
from gruppetto.attach.sharding import FlatModel
from gruppetto.numerics import fragment
from gruppetto.runtime.leases import Lease, LeasePool


def a_line(values: list[float], dtype: torch.dtype = torch.float32) -> tuple[nn.Parameter, FlatModel]:
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor(values).to(dtype))
    flat = FlatModel(model)
    flat.cut(fragment(flat.layout, 1))
    return model.w, flat


def lease(values: list[float]) -> Lease:
    arrived = LeasePool().lend(len(values))
    arrived.values[:] = values
    return arrived


def test_overwrite_takes_the_global_value() -> None:
    w, flat = a_line([1.0, 2.0])
    apply.overwrite(flat, 0, lease([5.0, -1.0]))
    assert w.tolist() == [5.0, -1.0]


def test_blend_keeps_a_share() -> None:
    w, flat = a_line([1.0, 2.0])
    apply.blend(flat, 0, lease([5.0, -2.0]), np.empty(2, np.float32), alpha=0.25)
    assert w.tolist() == [0.25 * 1 + 0.75 * 5, 0.25 * 2 + 0.75 * -2]


def test_carry_keeps_what_was_learned_in_flight() -> None:
    w, flat = a_line([1.5, 2.0])  # offered at 1, 2; since then 0.5 was learned in the first
    apply.carry(flat, 0, lease([5.0, -2.0]), np.empty(2, np.float32), np.float32([1.0, 2.0]))
    assert w.tolist() == [5.5, -2.0]


FINITE = st.floats(-8, 8, width=32)


@given(theta=st.lists(FINITE, min_size=3, max_size=3), arrived=st.lists(FINITE, min_size=3, max_size=3))
def test_the_modes_against_float64(theta: list[float], arrived: list[float]) -> None:
    offered = np.float32([0.5, -0.25, 2.0])
    exact_theta, exact = np.float64(theta), np.float64(arrived)
    for alpha in (0.0, 0.3, 1.0):
        w, flat = a_line(theta)
        apply.blend(flat, 0, lease(arrived), np.empty(3, np.float32), alpha)
        np.testing.assert_allclose(w.detach().numpy(), alpha * exact_theta + (1 - alpha) * exact, atol=4e-6)
    w, flat = a_line(theta)
    apply.carry(flat, 0, lease(arrived), np.empty(3, np.float32), offered)
    np.testing.assert_allclose(w.detach().numpy(), exact + exact_theta - offered, atol=4e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_base_of_a_half_precision_parameter_is_what_it_was_loaded_with(dtype: torch.dtype) -> None:
    value = 1.0 + 2.0**-12  # between two numbers of either dtype
    w, flat = a_line([0.0], dtype)
    arrived = lease([value])
    apply.overwrite(flat, 0, arrived)
    assert arrived.values[0] == float(w.detach()[0]) != value
    arrived = lease([value])
    apply.carry(flat, 0, arrived, np.empty(1, np.float32), np.float32([0.5]))
    assert arrived.values[0] == float(torch.tensor(value).to(dtype)), "of Θ, not of what was carried on top"


def test_the_optimizer_keeps_its_state_and_its_parameters() -> None:
    w, flat = a_line([1.0, 2.0])
    optimizer = torch.optim.AdamW([w], lr=0.1)
    w.sum().backward()
    optimizer.step()
    moments = optimizer.state[w]["exp_avg"].clone()
    apply.overwrite(flat, 0, lease([5.0, -1.0]))
    assert torch.equal(optimizer.state[w]["exp_avg"], moments)
    assert optimizer.param_groups[0]["params"][0] is w and w.grad is not None
