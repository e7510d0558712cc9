"""The window's formula, and the three ends of a round."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.grace import ema, grace_window_s, median
from gruppetto.protocol.quorum import closing_verdict, effective_quorum, quorum_verdict

seconds = st.floats(0, 1e4)


@given(seconds, seconds, seconds, st.integers(0, 10), st.floats(0, 1))
def test_window_is_the_formula(step: float, quorum: float, sync: float, tau: int, gamma: float) -> None:
    window = grace_window_s(step_s=step, quorum_s=quorum, sync_s=sync, overlap_steps=tau, grace_factor=gamma)
    assert window == min(step, gamma * max(0.0, tau * step - (quorum + sync)))
    assert 0 <= window <= step


@pytest.mark.parametrize("missing", ["step_s", "quorum_s", "sync_s"])
def test_no_window_until_everything_is_measured(missing: str) -> None:
    known: dict[str, float | None] = {"step_s": 1.0, "quorum_s": 0.1, "sync_s": 0.1, missing: None}
    assert grace_window_s(**known, overlap_steps=2, grace_factor=0.8) == 0.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.01, 1))
def test_an_average_stays_within_its_samples(samples: list[float], factor: float) -> None:
    value: float | None = None
    for sample in samples:
        value = ema(value, sample, factor)
    assert value is not None
    assert min(samples) - 1e-6 <= value <= max(samples) + 1e-6


@given(st.lists(st.floats(0, 1e6)))
def test_median_has_as_many_below_as_above(values: list[float]) -> None:
    middle = median(values)
    if middle is None:
        assert not values
    else:
        assert sum(v < middle for v in values) <= len(values) / 2
        assert sum(v > middle for v in values) <= len(values) / 2


OPEN = {
    "quorum": 2,
    "answers": 2,
    "waited_for": 1,
    "moved_on": 0,
    "spent_s": 0.1,
    "grace_s": 0.5,
    "grace_over": False,
    "grace_on": True,
}


@pytest.mark.parametrize(
    ("change", "close", "why"),
    [
        ({}, False, "grace: 0.10 of 0.50 s"),
        ({"waited_for": 0}, True, "everybody answered"),
        ({"moved_on": 2}, True, "the fleet moved on"),
        ({"moved_on": 1}, False, "grace"),
        ({"grace_over": True}, True, "grace spent"),
        ({"grace_on": False}, True, "no grace window"),
        ({"answers": 1, "waited_for": 0, "moved_on": 9, "grace_over": True}, False, "answers: 1/2"),
    ],
)
def test_the_ends_of_a_round(change: dict[str, Any], close: bool, why: str) -> None:
    verdict = closing_verdict(**{**OPEN, **change})
    assert verdict.close is close
    assert why in verdict.why


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_quorum_needs_k_learners(quorum: int, at_clock: int, live: int) -> None:
    assert quorum_verdict(quorum=quorum, at_clock=at_clock, live=live).close is (at_clock >= quorum)
    assert effective_quorum(min_quorum=quorum, live=live, degrade=False) == quorum
    assert 1 <= effective_quorum(min_quorum=quorum, live=live, degrade=True) <= quorum
