"""The rules that a bad learner cannot move far, against float64 oracles; and what it does to the others."""

from __future__ import annotations

import math
from statistics import median_low

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gruppetto.numerics.merge import CLIP_RADIUS_AT, MERGE_RULES, TRIM_SHARE, clipped_rda, median, rda, trimmed

Vector = NDArray[np.float32]
ROBUST = ("trimmed", "median", "clipped-rda")
IN_THE_HULL = ("mean", "trimmed", "median")
values = st.floats(-1e3, 1e3, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)


@st.composite
def contributions(draw: st.DrawFn, at_least: int = 1, at_most: int = 11) -> tuple[list[Vector], list[float]]:
    numel, count = draw(st.integers(1, 20)), draw(st.integers(at_least, at_most))
    deltas = [draw(arrays(np.float32, numel, elements=values)) for _ in range(count)]
    return deltas, [draw(st.floats(1e-3, 1e6)) for _ in range(count)]


@given(contributions())
def test_trimmed_coordinate_by_coordinate(given_: tuple[list[Vector], list[float]]) -> None:
    deltas, w = given_
    count = len(w)
    cut = 0 if count < 3 else max(1, math.floor(TRIM_SHARE * count))
    for i, found in enumerate(trimmed(deltas, w)):
        kept = sorted((float(delta[i]), weight) for delta, weight in zip(deltas, w, strict=True))[cut : count - cut]
        wanted = sum(v * weight for v, weight in kept) / sum(weight for _, weight in kept)
        scale = max(abs(v) for v, _ in kept)
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6 * scale)


@given(contributions())
def test_median_coordinate_by_coordinate(given_: tuple[list[Vector], list[float]]) -> None:
    deltas, w = given_
    if len(w) == 2:
        return  # two have no middle but their mean, tested as such
    np.testing.assert_allclose(median(deltas, w), np.median(np.stack(deltas).astype(np.float64), axis=0), rtol=1e-6)


@given(contributions(at_least=2))
def test_clipped_rda_is_rda_with_another_length(given_: tuple[list[Vector], list[float]]) -> None:
    deltas, w = given_
    plain = rda(deltas, w).astype(np.float64)
    directions = [d.astype(np.float64) / (float(np.linalg.norm(d.astype(np.float64))) or 1.0) for d in deltas]
    pointing = np.average(np.stack(directions), axis=0, weights=w)
    assume(float(np.linalg.norm(pointing)) > 1e-3)
    norms = [float(np.linalg.norm(d.astype(np.float64))) for d in deltas]
    most = CLIP_RADIUS_AT * median_low([n for n in norms if n > 0])
    radius = np.average([min(n, most) for n in norms], weights=w)
    wanted = radius * plain / np.linalg.norm(plain)
    assert float(np.linalg.norm(clipped_rda(deltas, w) - wanted)) <= 1e-3 * radius


@pytest.mark.parametrize("rule", IN_THE_HULL)
@given(given_=contributions())
def test_no_coordinate_leaves_the_range_of_what_was_offered(
    rule: str, given_: tuple[list[Vector], list[float]]
) -> None:
    deltas, w = given_
    merged, offered = MERGE_RULES[rule](deltas, w), np.stack(deltas)
    slack = 1e-6 * np.abs(offered).max(axis=0)
    assert (offered.min(axis=0) - slack <= merged).all() and (merged <= offered.max(axis=0) + slack).all()


@pytest.mark.parametrize("rule", ["rda", "clipped-rda"])
@given(given_=contributions())
def test_a_merge_is_no_longer_than_the_longest(rule: str, given_: tuple[list[Vector], list[float]]) -> None:
    deltas, w = given_
    longest = max(float(np.linalg.norm(d.astype(np.float64))) for d in deltas)
    assert float(np.linalg.norm(MERGE_RULES[rule](deltas, w).astype(np.float64))) <= longest * (1 + 1e-5)


@pytest.mark.parametrize("rule", ROBUST)
@given(seed=st.integers(0, 2**32 - 1), factor=st.sampled_from([-1e30, -1e6, 1e3, 1e12, 1e30]), weight=st.floats(0.5, 4))
def test_one_outlier_of_five_moves_a_robust_rule_a_little(rule: str, seed: int, factor: float, weight: float) -> None:
    rng = np.random.default_rng(seed)
    honest = [np.float32(1 + 0.3 * rng.standard_normal(50)) for _ in range(4)]
    outlier = np.float32(factor * rng.standard_normal(50))
    merged = MERGE_RULES[rule]([*honest, outlier], [1.0, 1.0, 1.0, 1.0, weight])
    largest = max(float(np.linalg.norm(d)) for d in honest)
    # Twice the median counts for the length at most, whatever the weight; a coordinate stays among the honest ones.
    assert float(np.linalg.norm(merged.astype(np.float64))) <= 2.01 * largest


def test_one_outlier_of_five_moves_the_mean_and_rda_anywhere() -> None:
    honest, outlier = np.ones(4, np.float32), np.full(4, 1e6, np.float32)
    for rule in ("mean", "rda"):
        assert MERGE_RULES[rule]([honest] * 4 + [outlier], [1.0] * 5).min() > 1e5


def test_a_tensor_that_most_have_no_use_for_is_not_stilled() -> None:
    delta, still = np.float32([3.0, 4.0]), np.zeros(2, np.float32)
    np.testing.assert_allclose(clipped_rda([still, still, delta], [1.0, 1.0, 1.0]), delta / 3, rtol=1e-6)


def test_directions_that_cancel_leave_nothing_under_clipped_rda() -> None:
    delta = np.float32([1.0, -2.0])
    assert np.array_equal(clipped_rda([delta, -1e6 * delta], [1.0, 1.0]), np.zeros(2, np.float32))


def test_the_largest_numbers_do_not_overflow_in_the_median() -> None:
    most = np.full(3, np.finfo(np.float32).max)
    assert np.array_equal(median([most, most], [1.0, 1.0]), most)
