"""Pauses between connections: they grow whenever a connection does not last, and only then."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.runtime.redial import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S, Redial


@given(lasted=st.lists(st.floats(0.0, 2 * STEADY_S), max_size=20), seed=st.integers(0, 9))
def test_a_pause_doubles_with_every_connection_since_the_last_steady_one(lasted: list[float], seed: int) -> None:
    redial, short = Redial(random.Random(seed)), 0
    for lasted_s in lasted:
        short = 0 if lasted_s >= STEADY_S else short
        due_s = min(FIRST_PAUSE_S * 2**short, LONGEST_PAUSE_S)
        assert due_s / 2 <= redial.pause_s(lasted_s=lasted_s) <= due_s
        assert redial.again == (short > 0)
        short += 1


def test_a_connection_that_breaks_after_every_welcome_is_made_a_dozen_times_a_minute_at_most() -> None:
    redial = Redial(random.Random(0))
    pauses = [redial.pause_s(lasted_s=0.01) for _ in range(40)]
    assert min(pauses[6:]) >= LONGEST_PAUSE_S / 2
