"""Every fragment once per H rounds, spread evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.units import Fragment, Round

sizes = st.integers(1, 60)


@given(sizes, sizes, st.integers(0, 500))
def test_due_is_the_definition(num_fragments: int, sync_period: int, t: int) -> None:
    schedule = Schedule(num_fragments=num_fragments, sync_period=sync_period)
    by_definition = tuple(p for p in range(num_fragments) if (t - p * sync_period // num_fragments) % sync_period == 0)
    assert schedule.due(Round(t)) == by_definition


@given(sizes, sizes, st.integers(1, 500))
def test_each_fragment_once_per_period(num_fragments: int, sync_period: int, first: int) -> None:
    schedule = Schedule(num_fragments=num_fragments, sync_period=sync_period)
    seen = Counter(p for t in range(first, first + sync_period) for p in schedule.due(Round(t)))
    assert seen == {Fragment(p): 1 for p in range(num_fragments)}


@given(sizes, sizes)
def test_load_is_even(num_fragments: int, sync_period: int) -> None:
    schedule = Schedule(num_fragments=num_fragments, sync_period=sync_period)
    loads = [len(schedule.due(Round(t))) for t in range(1, sync_period + 1)]
    assert max(loads) - min(loads) <= 1


@given(sizes, sizes, st.integers(1, 100), st.integers(0, 70))
def test_window_is_the_union(num_fragments: int, sync_period: int, first: int, width: int) -> None:
    schedule = Schedule(num_fragments=num_fragments, sync_period=sync_period)
    union = {p for t in range(first, first + width) for p in schedule.due(Round(t))}
    assert schedule.due_within(Round(first), width) == tuple(sorted(union))


@pytest.mark.parametrize(("num_fragments", "sync_period"), [(0, 1), (1, 0), (-3, 4)])
def test_impossible_sizes_are_refused(num_fragments: int, sync_period: int) -> None:
    with pytest.raises(SettingError, match="use 1 or more"):
        Schedule(num_fragments=num_fragments, sync_period=sync_period)
