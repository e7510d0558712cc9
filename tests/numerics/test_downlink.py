"""Steps down: both ends have the same bits, and errors do not add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.numerics.codec import CODECS, Codec
from gruppetto.numerics.downlink import DOWNLINKS, REST, follow, take_step

each_coarse = pytest.mark.parametrize("codec", [c for c in CODECS.values() if c.keeps_rest], ids=lambda c: c.name)
sizes = st.sampled_from([0, 1, 127, 128, 129, 1024, 1025, 2100])


@each_coarse
@given(seed=st.integers(0, 2**32 - 1), numel=sizes, steps=st.integers(1, 8))
def test_whoever_follows_every_step_has_the_value_to_the_bit_and_nothing_stays_unsaid(
    codec: Codec, seed: int, numel: int, steps: int
) -> None:
    rng = np.random.default_rng(seed)
    meant = rng.integers(-1000, 1001, numel).astype(np.float64)
    theta, rest = meant.astype(np.float32), None
    learner, forgotten = theta.copy(), 0.0
    for _ in range(steps):
        step = rng.integers(-100, 101, numel).astype(np.float32)
        meant += step
        after = theta + step
        payload, rest, is_finite = take_step(theta, after, rest, codec)
        learner = follow(learner, payload.tobytes(), codec)
        assert is_finite
        np.testing.assert_array_equal(learner.view(np.uint32), after.view(np.uint32))
        said = codec.decode(payload, numel)
        np.testing.assert_array_equal(after, theta + said)
        theta = after
        # What is not said yet, the float32 roundings of a value of a few thousand, and what the words of each rest
        # leave out: a small share of the step and the rest before it.
        forgotten += REST.relative_error * codec.relative_error * 200 + 2.0**-12
        off = np.abs(theta + REST.decode(rest, numel).astype(np.float64) - meant)
        assert (off <= forgotten).all()


@each_coarse
@given(seed=st.integers(0, 2**32 - 1), numel=sizes)
def test_the_rest_is_said_with_the_next_step(codec: Codec, seed: int, numel: int) -> None:
    rng = np.random.default_rng(seed)
    before, after, rest = (rng.standard_normal(numel).astype(np.float32) for _ in range(3))
    owed = REST.encode(rest)
    wanted = (after - before) + REST.decode(owed, numel)
    payload, left, _ = take_step(before, after, owed, codec, left := np.empty(owed.size, np.uint8))
    np.testing.assert_array_equal(payload, codec.encode(wanted))
    np.testing.assert_array_equal(left, REST.encode(wanted - codec.decode(payload, numel)))


@each_coarse
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3.4e38])
def test_a_step_to_nowhere_is_found_out(codec: Codec, bad: float) -> None:
    before, after = np.full(200, -3.4e38, np.float32), np.zeros(200, np.float32)
    after[150] = bad
    assert not take_step(before, after, None, codec)[2]


def test_every_way_down_has_exact_words_to_begin_from() -> None:
    for name, downlink in DOWNLINKS.items():
        assert downlink.name == name and downlink.whole.name in ("fp32", "bf16")
        assert downlink.codecs == {downlink.whole.name, downlink.usual.name}
        if downlink.steps is not None:
            assert downlink.whole.relative_error == 0 and downlink.steps.keeps_rest
