"""Asking again, and looking ever more rarely."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import steady

from gruppetto.errors import AddressError, ConnectionLost
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.rhythm import Rhythm, looks_per_event


def test_a_request_is_made_again_while_patience_lasts_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    left = [ConnectionLost("away"), AddressError("refused"), None, ConnectionLost("away"), None]

    async def ask() -> str:
        wrong = left.pop(0) if left else ConnectionLost("gone")
        if wrong is not None:
            raise wrong
        return "here"

    async def test() -> None:
        endurance = Endurance(logging.getLogger("gruppetto.syncer"), patience_s=0.5)
        assert await endurance.tried(ask) == "here" and not endurance.away
        assert await endurance.tried(ask) == "here"
        with pytest.raises(ConnectionLost, match="gone"):
            await endurance.tried(ask)
        assert endurance.away == "gone"

    with caplog.at_level(logging.INFO, "gruppetto.syncer"):
        steady.run(test())
    assert caplog.messages == ["away; asked again until it answers", "the store answers again"]


@given(st.floats(0.02, 10.0), st.floats(1.0, 20.0), st.floats(0.0, 1000.0))
def test_the_formula_counts_the_looks(poll_s: float, rest: float, event_s: float) -> None:
    rhythm, at, looks = Rhythm(poll_s, rest * poll_s), 0.0, 0
    while looks < 100_000 and (at := at + rhythm.pause_s()) <= event_s:
        looks += 1
    assert abs(looks - looks_per_event(event_s, poll_s, rest * poll_s)) <= 1.5


@given(st.floats(0.02, 10.0), st.floats(0.0, 1000.0))
def test_news_waits_for_a_quarter_of_the_time_since_the_last_at_most(poll_s: float, event_s: float) -> None:
    rhythm, at = Rhythm(poll_s, float("inf")), 0.0
    while at < event_s:
        at += rhythm.pause_s()
    assert at - event_s <= poll_s + 0.25 * event_s + 1e-6 * at
