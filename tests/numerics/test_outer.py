from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gruppetto.errors import SettingError
from gruppetto.numerics.outer import OUTER_OPTIMIZERS, OUTER_PRESETS, OuterOptimizer, OuterSetting, choose_outer

each_optimizer = pytest.mark.parametrize("optimizer", OUTER_OPTIMIZERS.values(), ids=OUTER_OPTIMIZERS)
vectors = arrays(np.float32, (3, 7), elements=st.floats(-100, 100, width=32))


@given(vectors, st.lists(vectors, min_size=1, max_size=4), st.floats(0.01, 2), st.floats(0, 0.99))
def test_nesterov_is_the_equation_of_the_paper(theta, deltas, lr, momentum) -> None:  # type: ignore[no-untyped-def]
    init, update = OUTER_OPTIMIZERS["nesterov"].init, OUTER_OPTIMIZERS["nesterov"].update
    state, exact, b = init(theta), theta.astype(np.float64), np.zeros(theta.shape)
    for delta in deltas:
        theta, state = update(delta, state, theta, lr, momentum)
        b = momentum * b + delta
        exact = exact - lr * (delta + momentum * b)
    assert theta.dtype == state[0].dtype == np.float32
    np.testing.assert_allclose(theta, exact, atol=2e-6 * 100 * len(deltas) ** 2 * 4)
    np.testing.assert_allclose(state[0], b, atol=2e-6 * 100 * len(deltas))


@given(vectors, vectors, st.floats(0.01, 2))
def test_nesterov_without_momentum_is_sgd(theta, delta, lr) -> None:  # type: ignore[no-untyped-def]
    nesterov, sgd = OUTER_OPTIMIZERS["nesterov"], OUTER_OPTIMIZERS["sgd"]
    np.testing.assert_array_equal(
        nesterov.update(delta, nesterov.init(theta), theta, lr, 0.0)[0],
        sgd.update(delta, sgd.init(theta), theta, lr, 0.0)[0],
    )


@each_optimizer
def test_update_leaves_its_inputs_alone(optimizer: OuterOptimizer) -> None:
    theta, delta = np.ones(4, np.float32), np.ones(4, np.float32)
    state = optimizer.init(theta)
    optimizer.update(delta, state, theta, 0.5, 0.0)
    assert (theta == 1).all() and (delta == 1).all() and all((array == 0).all() for array in state)


@each_optimizer
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([0, 1, 5, 1023, 1024, 1025, 3000]), min_size=1, max_size=4),
    lr=st.floats(0.01, 2),
    momentum=st.floats(0, 0.99),
)
def test_the_fused_step_gives_the_bits_of_the_readable_update(optimizer, seed, sizes, lr, momentum) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    stops = np.cumsum(sizes)
    starts = stops - sizes
    total, theta = (rng.standard_normal(stops[-1]).astype(np.float32) for _ in range(2))
    scales = rng.uniform(0.1, 10, len(sizes)).astype(np.float32)
    state = tuple(rng.standard_normal(theta.size).astype(np.float32) for _ in optimizer.init(theta))
    delta = np.concatenate([scales[p] * total[starts[p] : stops[p]] for p in range(len(sizes))])
    wanted, wanted_state = optimizer.update(delta, state, theta, lr, momentum)
    step, _ = optimizer.update(delta, state, np.zeros_like(theta), lr, momentum)
    moved_sq, size_sq = optimizer.step(total, starts, stops, scales, theta, state, lr, momentum)
    np.testing.assert_array_equal(theta, wanted)
    for array, wanted_array in zip(state, wanted_state, strict=True):
        np.testing.assert_array_equal(array, wanted_array)
    if theta.size:
        assert size_sq == pytest.approx(float(np.sum(theta.astype(np.float64) ** 2)), rel=1e-6)
        assert moved_sq == pytest.approx(float(np.sum(step.astype(np.float64) ** 2)), rel=2e-6)


def test_auto_goes_by_the_number_of_outer_steps() -> None:
    assert choose_outer("auto", 23_999, 24)[0] == OUTER_PRESETS["short"] == OuterSetting(lr=0.7, momentum=0.5)
    assert choose_outer("auto", 48_000, 24)[0] == OUTER_PRESETS["paper"] == OuterSetting(lr=0.4, momentum=0.9)
    assert choose_outer("auto", None, 24)[0] == OUTER_PRESETS["paper"]
    assert "1999 outer steps a fragment, below 2000" in choose_outer("auto", 47_999, 24)[1]
    assert "2000 outer steps a fragment, not below 2000" in choose_outer("auto", 48_000, 24)[1]
    assert "without an end" in choose_outer("auto", None, 24)[1]


def test_a_name_or_a_setting_is_taken_as_it_is() -> None:
    for name, preset in OUTER_PRESETS.items():
        setting, why = choose_outer(name, 10, 24)
        assert replace(setting, rounds=None, sync_period=1) == preset
        assert why.startswith(name) and "by name" in why
    mine = OuterSetting(lr=0.123, momentum=0.4)
    assert choose_outer(mine, 10, 24) == (mine, "nesterov, lr 0.123, momentum 0.4: set explicitly")


def test_where_the_run_ends_is_known_to_those_that_change_on_the_way() -> None:
    rising = OuterSetting(lr=0.5, first_share=0.5, final_share=2.0)
    assert choose_outer(rising, 100, 8)[0].lr_at(100) == 1.0
    assert "lr from 0.25 to 1" in choose_outer(rising, 100, 8)[1]
    # Without an end there is no way to go, and nothing to take the mean of.
    endless, _ = choose_outer(OuterSetting(lr=0.5, first_share=0.5, average_share=0.1), None, 8)
    assert endless.lr_at(1) == endless.lr_at(10**9) == 0.5 and not endless.averages
    assert "mean of the last 10%" in choose_outer(OuterSetting(average_share=0.1), 100, 8)[1]


@given(
    rounds=st.integers(8, 60),
    period=st.integers(1, 8),
    phase=st.integers(0, 7),
    share=st.floats(0.01, 0.5),
    seed=st.integers(0, 99),
)
def test_the_last_value_is_the_mean_of_those_at_the_end(
    rounds: int, period: int, phase: int, share: float, seed: int
) -> None:
    setting, _ = choose_outer(OuterSetting(average_share=share), rounds, period)
    assert setting.averages and setting.keeps != OuterSetting().keeps
    due = [t for t in range(1, rounds + 1) if (t - phase) % period == 0]
    values = np.random.default_rng(seed).standard_normal((len(due), 3)).astype(np.float32)
    mean, last = np.zeros(3, np.float32), np.zeros(3, np.float32)
    for round, value in zip(due, values, strict=True):
        last = value.copy()
        setting.average(mean, last, round)
        assert round == due[-1] or np.array_equal(last, value)
    if due:
        counted = [v for t, v in zip(due, values, strict=True) if t > rounds - int(share * rounds)]
        wanted = np.mean(counted, axis=0) if counted else values[-1]
        np.testing.assert_allclose(last, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"optimizer": "adamw"}, "outer.optimizer: unknown optimizer 'adamw'; use one of"),
        ({"lr": 0.0}, "outer.lr: lr is 0.0"),
        ({"lr": float("nan")}, "outer.lr: lr is nan"),
        ({"lr": 11.0}, "outer.lr: lr is 11.0"),
        ({"momentum": 1.0}, "outer.momentum: momentum is 1.0"),
        ({"momentum": -0.1}, "outer.momentum: momentum is -0.1"),
        ({"momentum": float("nan")}, "outer.momentum: momentum is nan"),
        ({"first_share": 0.0}, "outer.first_share: is 0.0; use more than 0"),
        ({"final_share": float("nan")}, "outer.final_share: is nan"),
        ({"average_share": 0.6}, "outer.average_share: is 0.6; use a share from 0 to 0.5"),
        ({"optimizer": "sgd", "momentum": 0.9}, "sgd has no momentum, but momentum is 0.9"),
    ],
)
def test_refuses(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        OuterSetting(**wrong)  # type: ignore[arg-type]


def test_refuses_an_unknown_name() -> None:
    with pytest.raises(SettingError, match="outer: unknown name 'papr'; use auto or one of"):
        choose_outer("papr", 10, 24)
