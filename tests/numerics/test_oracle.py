"""The parts, put together as plain DiLoCo, against the textbook."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gruppetto.numerics.accumulate import Accumulator
from gruppetto.numerics.fragments import fragment
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.numerics.oracle import InnerStep, synchronous_diloco
from gruppetto.numerics.outer import OUTER_OPTIMIZERS

Vector = NDArray[np.float32]
SHAPES = {"wte.weight": (40, 16), "h.0.w": (16, 16), "h.0.b": (16,), "gate": ()}
LAYOUT = Layout(tensors=tuple(TensorSpec(name=n, shape=s, dtype="float32") for n, s in SHAPES.items()))


def learners(seed: int, count: int) -> list[InnerStep]:
    """Each learner goes down its own quadratic bowl, in the precision of what it is given."""

    def bowl(centre: Vector) -> InnerStep:
        def inner_step(theta, step):  # type: ignore[no-untyped-def]
            pull = theta.dtype.type(0.05 / (1 + 0.1 * step))
            return theta - pull * (theta - centre.astype(theta.dtype))

        return inner_step

    return [
        bowl(np.random.default_rng(seed + m).standard_normal(LAYOUT.numel).astype(np.float32)) for m in range(count)
    ]


def decoupled(
    theta: Vector, inner: list[InnerStep], outer_steps: int, inner_steps: int, lr: float, momentum: float, p: int = 1
) -> list[Vector]:
    """K = M, τ = 0, plain mean, through fragments, accumulators and the fused outer step."""
    cut = fragment(LAYOUT, p, merge_of=lambda name: "mean")
    place = dict(zip(SHAPES, np.cumsum([0, *(t.numel for t in LAYOUT.tensors)]), strict=False))
    indices = [
        np.concatenate([np.arange(q.start, q.stop) + place[q.name] for q in part.pieces]) for part in cut.fragments
    ]
    running = [Accumulator(part, ["mean"] * len(part.pieces)) for part in cut.fragments]
    states = [OUTER_OPTIMIZERS["nesterov"].init(theta[index]) for index in indices]
    history = [theta]
    for outer in range(outer_steps):
        locals_ = []
        for inner_step in inner:
            local = theta
            for i in range(inner_steps):
                local = inner_step(local, outer * inner_steps + i)
            locals_.append(local)
        theta = theta.copy()
        for index, merge, state in zip(indices, running, states, strict=True):
            merge.reset()
            for local in locals_:
                merge.fold(theta[index] - local[index], weight=12.5)
            part = theta[index]
            assert merge.outer_step(part, state, "nesterov", lr, momentum).finite
            theta[index] = part
        history.append(theta)
    return history


@given(
    st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5), st.sampled_from([(0.4, 0.9), (0.7, 0.5), (1.0, 0.0)])
)
def test_one_fragment_equals_the_textbook_bit_for_bit(
    seed: int, count: int, inner_steps: int, setting: tuple[float, float]
) -> None:
    lr, momentum = setting
    theta = np.random.default_rng(seed).standard_normal(LAYOUT.numel).astype(np.float32)
    wanted = synchronous_diloco(theta, learners(seed, count), 4, inner_steps, lr, momentum)
    found = decoupled(theta, learners(seed, count), 4, inner_steps, lr, momentum)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("num_fragments", [2, 3, 8])
def test_cutting_the_model_changes_nothing_when_all_fragments_go_together(num_fragments: int) -> None:
    theta = np.random.default_rng(1).standard_normal(LAYOUT.numel).astype(np.float32)
    whole, cut = (decoupled(theta, learners(1, 3), 4, 3, 0.4, 0.9, p) for p in (1, num_fragments))
    for ours, theirs in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_float32_stays_close_to_float64() -> None:
    theta = np.random.default_rng(2).standard_normal(LAYOUT.numel)
    exact = synchronous_diloco(theta, learners(2, 4), 20, 5, 0.4, 0.9)[-1]
    found = decoupled(theta.astype(np.float32), learners(2, 4), 20, 5, 0.4, 0.9)[-1]
    assert exact.dtype == np.float64
    np.testing.assert_allclose(found, exact, atol=2e-5)


def test_the_oracle_leaves_its_start_alone_and_finds_the_middle_of_two_bowls() -> None:
    theta = np.zeros(2)
    bowls: list[InnerStep] = [lambda x, step: x - 0.1 * (x - 1.0), lambda x, step: x - 0.1 * (x - 3.0)]
    history = synchronous_diloco(theta, bowls, 100, 10, 0.7, 0.5)
    assert not theta.any() and len(history) == 101
    np.testing.assert_allclose(history[-1], 2.0, atol=1e-6)


def test_one_learner_with_lr_one_and_no_momentum_just_trains() -> None:
    theta = np.random.default_rng(4).standard_normal(LAYOUT.numel)
    (inner,) = learners(4, 1)
    local: NDArray[np.floating] = theta
    for step in range(12):
        local = inner(local, step)
    np.testing.assert_allclose(synchronous_diloco(theta, [inner], 4, 3, 1.0, 0.0)[-1], local, rtol=1e-12)
