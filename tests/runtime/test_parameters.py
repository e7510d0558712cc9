from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.numerics import CODECS, DOWNLINKS, OUTER_PRESETS, Layout, TensorSpec, mean
from gruppetto.numerics.outer import OuterSetting, choose_outer
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.runtime.intake import Intake
from gruppetto.runtime.parameters import Parameters
from gruppetto.runtime.wire import checksum

SIZES = (6, 5, 5)
LAYOUT = Layout(tensors=tuple(TensorSpec(name=f"w{i}", shape=(n,), dtype="float32") for i, n in enumerate(SIZES)))
MERGE = ((".*", "mean"),)


def parameters(downlink="fp32", num_fragments=3, preset="finetune"):
    parts = cut(LAYOUT, num_fragments, "balanced", MERGE)
    return Parameters(
        parts, rules=merge_rules(LAYOUT, MERGE), outer=OUTER_PRESETS[preset], downlink=DOWNLINKS[downlink]
    )


def body_of(p, values, codec="fp32"):
    data = CODECS[codec].encode(np.asarray(values, np.float32))
    with Intake(CODECS[codec], len(data), 1).open(p, len(data), checksum(data)) as upload:
        upload.write(data)
        return upload.finish()


def seeded(**more):
    made = parameters(**more)
    for spec in made.parts.fragments:
        made.seed(Fragment(spec.index), body_of(spec, np.zeros(spec.numel)))
    assert made.seed_is_complete and not made.seeded
    made.publish((p, 0) for p in range(len(made.parts.fragments)))
    assert made.seeded
    return made


def one_round(made, p, delta, t):
    made.fold(p, body_of(made.spec(p), delta), CODECS["fp32"], 1.0)
    report = made.outer_step([p], t)
    if p not in report.not_finite:
        made.publish([(p, t)])
    return report


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["keep", "drop", "none"])), max_size=30))
def test_a_borrowed_value_never_changes(moves):
    """Whatever rounds close meanwhile: a reader sees the value that it borrowed, to the last bit."""
    made = seeded(preset="short")
    borrowed = []
    for t, (p, what) in enumerate(moves, start=1):
        if what == "keep":
            value = made.current(p)
            borrowed.append((value, value.theta.copy(), bytes(value.body)))
        elif what == "drop" and borrowed:
            made.release(borrowed.pop(0)[0])
        one_round(made, p, np.full(made.spec(p).numel, t), t)
        for value, theta, body in borrowed:
            assert np.array_equal(value.theta, theta) and bytes(value.body) == body
            assert checksum(value.body) == value.checksum


def test_the_buffers_of_old_values_are_used_again():
    made = seeded()
    for t in range(1, 4):
        one_round(made, 1, np.ones(5), t)
    seen = {made._current[1].theta.ctypes.data}
    for t in range(4, 10):
        one_round(made, 1, np.ones(5), t)
        seen.add(made._current[1].theta.ctypes.data)
    assert len(seen) <= 3


def test_several_learners_become_their_mean():
    made = seeded()
    deltas = [np.float32([1, 2, 3, 4, 5]), np.float32([5, 4, 3, 2, 0])]
    for delta in deltas:
        made.fold(1, body_of(made.spec(1), delta), CODECS["fp32"], 2.0)
    made.outer_step([1], 1)
    assert not made._current[1].theta.any(), "nothing shows before it is published"
    made.publish([(1, 1)])
    assert np.array_equal(made._current[1].theta, -mean(deltas, [2.0, 2.0]))
    assert made._current[1].version == 1


def test_what_is_not_finite_is_thrown_away_with_its_momentum():
    made = seeded(preset="paper")
    one_round(made, 0, np.ones(6), 1)
    theta, momentum = made._current[0].theta.copy(), made._current[0].outer_state[0].copy()
    report = one_round(made, 0, np.full(6, 3e38), 2)
    assert report.not_finite == (0,) and made._current[0].version == 1
    assert np.array_equal(made._current[0].theta, theta)
    assert np.array_equal(made._current[0].outer_state[0], momentum)
    assert one_round(made, 0, np.ones(6), 3).not_finite == ()


def test_a_zero_update_is_reported():
    made = seeded()
    assert one_round(made, 0, np.zeros(6), 1).zero == (0,)


@pytest.mark.parametrize("downlink", sorted(DOWNLINKS))
def test_the_body_for_download_is_theta_in_the_downlink_codec(downlink):
    made = seeded(downlink=downlink)
    one_round(made, 2, np.linspace(1, 2, 5), 1)
    value = made.current(2)
    assert np.array_equal(value.body, DOWNLINKS[downlink].whole.encode(value.theta))
    assert np.shares_memory(value.body, value.theta) == (downlink != "bf16")


@pytest.mark.parametrize("optimizer", ["nesterov", "sgd"])
@pytest.mark.parametrize("downlink", ["fp32", "delta"])
def test_the_last_value_is_a_mean_also_of_a_syncer_that_began_again(optimizer, downlink):
    """Two syncers, of which one is made anew of what is durable before every round, end with the same bits."""
    momentum = 0.5 if optimizer == "nesterov" else 0.0
    plain, _ = choose_outer(OuterSetting(optimizer=optimizer, lr=0.7, momentum=momentum), 10, 1)
    averaging, _ = choose_outer(replace(plain, average_share=0.3), 10, 1)
    parts = cut(LAYOUT, 1, "balanced", MERGE)

    def fresh(outer):
        return Parameters(parts, rules=merge_rules(LAYOUT, MERGE), outer=outer, downlink=DOWNLINKS[downlink])

    def values(outer, *, again):
        made, thetas = fresh(outer), []
        made.seed(0, body_of(made.spec(0), np.zeros(16)))
        made.publish([(0, 0)])
        for t in range(1, 11):
            if again:
                theta, kept = made.pending([0])[0]
                made = fresh(outer)
                made.restore(0, t - 1, theta, kept)
            one_round(made, 0, np.random.default_rng(t).standard_normal(16), t)
            thetas.append(made._current[0].theta.copy())
        return np.array(thetas)

    wanted, found = values(plain, again=False), values(averaging, again=False)
    assert np.array_equal(found, values(averaging, again=True))
    assert np.array_equal(found[:-1], wanted[:-1])
    coarse = 0.0 if downlink == "fp32" else 0.05
    np.testing.assert_allclose(found[-1], wanted[-3:].mean(0), rtol=1e-5, atol=1e-6 + coarse)


def test_the_outer_rate_is_that_of_the_round():
    rising, _ = choose_outer(
        OuterSetting(optimizer="sgd", lr=1.0, momentum=0.0, first_share=0.5, final_share=2.0), 4, 1
    )
    made = Parameters(
        cut(LAYOUT, 1, "balanced", MERGE), rules=merge_rules(LAYOUT, MERGE), outer=rising, downlink=DOWNLINKS["fp32"]
    )
    made.seed(0, body_of(made.spec(0), np.zeros(16)))
    made.publish([(0, 0)])
    for t in (1, 2, 3, 4):
        before = made._current[0].theta.copy()
        one_round(made, 0, np.ones(16), t)
        np.testing.assert_allclose(before - made._current[0].theta, rising.lr_at(t), rtol=1e-6)
    assert rising.lr_at(4) == 2.0
