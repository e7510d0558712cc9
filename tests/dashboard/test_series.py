"""Bounded memory, exact counts, exact extremes."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.dashboard.series import FINEST_S, Series
from gruppetto.dashboard.stretches import Stretches

times = st.floats(0, 1e6)
values = st.floats(-1e12, 1e12)


@given(st.lists(st.tuples(times, values), max_size=200), st.integers(1, 50))
def test_counts_extremes_and_sums_survive_every_joining(points: list[tuple[float, float]], most: int) -> None:
    series = Series(slots=16)
    for t, value in points:
        series.add(t, value)
    seen = series.window(0.0, 2e6, most=most)
    assert seen.count.sum() == len(points)
    assert len(seen.start) <= min(16, most + 1)
    if points:
        assert seen.low.min() == min(value for _, value in points)
        assert seen.high.max() == max(value for _, value in points)
        assert math.isclose(seen.total.sum(), sum(v for _, v in points), rel_tol=1e-9, abs_tol=1)


@given(st.lists(st.tuples(times, values), min_size=1, max_size=100), times, times, st.integers(1, 40))
def test_a_window_holds_what_lies_in_it(points: list[tuple[float, float]], a: float, b: float, most: int) -> None:
    """Every slot is the dumb twin's: all points between its two ends; nothing that lies in the window is missing."""
    start, end = min(a, b), max(a, b) + FINEST_S
    series = Series(slots=32)
    for t, value in points:
        series.add(t, value)
    seen = series.window(start, end, most=most)
    for begin, count, low, high in zip(seen.start, seen.count, seen.low, seen.high, strict=True):
        inside = [value for t, value in points if begin <= t < begin + seen.width_s]
        assert (count, low, high) == (len(inside), min(inside), max(inside))
    assert seen.count.sum() >= sum(1 for t, _ in points if start <= t < end)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100)), max_size=60))
def test_seconds_that_are_spread_out_are_all_there(stretches: list[tuple[float, float]]) -> None:
    series = Series(slots=64)
    for start, length in stretches:
        series.spread(start, start + length)
    wanted = sum(length for start, length in stretches if start < start + length)
    assert math.isclose(series.window(0.0, 2e4, most=9).total.sum(), wanted, rel_tol=1e-6, abs_tol=1e-6)


def test_what_is_no_number_or_comes_at_no_time_does_no_harm() -> None:
    series = Series(slots=4)
    for t, value in [(math.nan, 1.0), (-5.0, 2.0), (math.inf, 3.0), (1.0, math.nan), (1.0, math.inf)]:
        series.add(t, value)
    assert series.window(0.0, math.inf, most=4).count.sum() == 3


@given(st.lists(st.tuples(st.floats(0.001, 10), st.sampled_from("abc")), max_size=300))
def test_stretches_are_bounded_and_without_gaps(steps: list[tuple[float, str]]) -> None:
    lane, t, begins = Stretches(most=8), 0.0, []
    for length, state in steps:
        lane.enter(t, state)
        begins.append((t, state))
        t += length
    found = list(lane.within(0.0, t))
    assert len(found) <= 16
    if steps:
        assert found[0][0] == 0.0 and found[-1][1] == t and lane.state == steps[-1][1]
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in pairwise(found))
    if steps and len(steps) <= 8:
        joined = [b for i, b in enumerate(begins) if i == 0 or begins[i - 1][1] != b[1]]
        assert [(a, s) for a, _, s in found] == joined
