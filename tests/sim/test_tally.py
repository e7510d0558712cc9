"""Goodput and uptime against a look at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.sim.tally import Tally, half_width, spread

HORIZON = 40


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2), st.booleans()), max_size=30))
def test_uptime_is_the_share_of_moments_in_which_somebody_goes(turns: list[tuple[int, int, bool]]) -> None:
    turns.sort(key=lambda turn: turn[0])
    tally = Tally(chips=1, parties=3, horizon_s=HORIZON)
    for at, party, goes in turns:
        (tally.goes if goes else tally.stops)(party, float(at))
    up = 0
    for second in range(HORIZON):
        state = {party: goes for at, party, goes in turns if at <= second}
        up += any(state.values())
    assert tally.uptime == pytest.approx(up / HORIZON)


def test_what_reaches_beyond_the_horizon_counts_up_to_it() -> None:
    tally = Tally(chips=10, parties=1, horizon_s=10.0)
    tally.trained(8.0, 14.0, chips=5)
    tally.trained(12.0, 14.0, chips=5)
    assert tally.goodput == pytest.approx(0.1)


def test_the_interval_is_students() -> None:
    assert half_width([1.0]) is None
    assert half_width([1.0, 3.0]) == pytest.approx(12.71)
    assert spread([2.0] * 5) == (2.0, 0.0)
