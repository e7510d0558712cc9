"""However somebody asks, he gets no more than his rate, and always that much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.runtime.security.allowance import Allowance, Rate

TIMES = st.lists(st.floats(0, 10), max_size=200).map(sorted)


@given(TIMES, st.floats(0.5, 20), st.floats(1, 30))
def test_in_any_stretch_there_are_at_most_so_many(times: list[float], per_s: float, at_once: float) -> None:
    allowance = Allowance(Rate(per_s=per_s, at_once=at_once))
    taken = [now for now in times if allowance.take(now) == 0.0]
    for i, first in enumerate(taken):
        for j, last in enumerate(taken[i:], i):
            assert j - i + 1 <= at_once + (last - first) * per_s + 1e-6


@given(TIMES, st.floats(0.5, 20), st.floats(1, 30))
def test_who_waits_as_long_as_he_is_told_gets_one(times: list[float], per_s: float, at_once: float) -> None:
    allowance = Allowance(Rate(per_s=per_s, at_once=at_once))
    for now in times:
        wait_s = allowance.take(now)
        if wait_s:
            assert wait_s <= 1 / per_s + 1e-9
    later = times[-1] if times else 0.0
    assert allowance.take(later + 1 / per_s + 1e-6) == 0.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowance = Allowance(Rate(per_s=1.0, at_once=1.0))
    assert [allowance.take(now) > 0 for now in (5.0, 0.0, 5.0, 6.0)] == [False, True, True, False]
