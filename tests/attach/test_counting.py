"""Counts that a loop tells: every kind of integer is taken as the int it is, everything else is refused at the call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.attach.counting import MAX_CURSOR, StepCounts, whole_number
from gruppetto.errors import SettingError
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.units import Incarnation, LearnerId
from gruppetto.runtime.plausible import MAX_COUNT


def counts(tokens_per_step: int | None = None, cursor: Callable[[], Any] | None = None) -> StepCounts:
    core = LearnerCore(LearnerId("a"), session="s", layout_hash="x")
    return StepCounts(core, tokens_per_step=tokens_per_step, cursor=cursor)


@given(number=st.integers(0, MAX_COUNT), kind=st.sampled_from([int, np.int64, torch.tensor]))
def test_any_integer_becomes_a_plain_int(number: int, kind: Callable[[int], Any]) -> None:
    told = counts()
    told.add_tokens(kind(number))
    found = told.take_tokens(None)
    assert type(found) is int
    assert found == (number or 1)


NO_COUNTS = [8.0, np.float32(8), torch.tensor(8.0), torch.tensor([1, 2]), "8", None, True, -1, 2**70, 10**5000]


@pytest.mark.parametrize("wrong", NO_COUNTS, ids=lambda value: f"{type(value).__name__}")
def test_what_is_no_count_is_refused_where_it_is_said(wrong: Any) -> None:
    told = counts()
    with pytest.raises(SettingError, match=r"^Learner\.tokens: .*use a whole number"):
        told.add_tokens(wrong)
    with pytest.raises(SettingError, match=r"^Learner\.cursor: "):
        told.cursor = wrong
    with pytest.raises(SettingError, match=r"^Learner\.cursor: "):
        counts(cursor=lambda: wrong).take_cursor()
    if wrong is not None:
        with pytest.raises(SettingError, match=r"^Learner\.step\(tokens=\): "):
            told.take_tokens(wrong)
    told.add_tokens(3)
    assert (told.take_tokens(None), told.take_cursor()) == (3, 1), "nothing of it was counted"


def test_the_total_stays_within_what_the_wire_carries() -> None:
    told = counts(tokens_per_step=5)
    told.add_tokens(MAX_COUNT - 5)
    with pytest.raises(SettingError, match="too large"):
        told.add_tokens(6)
    assert told.take_tokens(None) == MAX_COUNT
    told.cursor = MAX_CURSOR
    assert told.take_cursor() == MAX_CURSOR


def test_which_count_goes_before_which(caplog: pytest.LogCaptureFixture) -> None:
    told = counts(tokens_per_step=5, cursor=lambda: np.int64(7))
    assert told.take_tokens(None) == 5
    told.add_tokens(2)
    assert told.take_tokens(None) == 7
    told.add_tokens(2)
    assert told.take_tokens(1) == 3
    told.cursor = 3
    assert told.cursor == 3
    assert told.take_cursor() == 7
    with caplog.at_level(logging.WARNING, "gruppetto.learner"):
        assert counts().take_tokens(None) == 1
    assert "are not known" in caplog.text


def test_what_was_told_of_another_life_moves_no_cursor() -> None:
    """Within a step the learner was given another slot: 40 was the old one's, and nothing of the new one was used."""
    core = LearnerCore(LearnerId("a"), session="s", layout_hash="x")
    by_hand, by_function, untold = (
        StepCounts(core, tokens_per_step=1, cursor=cursor) for cursor in (None, lambda: 41, None)
    )
    everybody = (by_hand, by_function, untold)
    core.incarnation = Incarnation(1)
    assert [one.take_cursor() for one in everybody] == [1, 41, 1]
    by_hand.cursor = 40
    core.incarnation, core.cursor = Incarnation(2), 7
    assert by_hand.cursor == 7
    assert [one.take_cursor() for one in everybody] == [7, 8, 8], "never a batch too few, where nobody can know"
    by_hand.cursor = 9
    assert [one.take_cursor() for one in everybody] == [9, 41, 8]


def test_a_whole_number_has_bounds() -> None:
    assert whole_number(4, "x", least=4, most=4) == 4
    with pytest.raises(SettingError, match=r"x: 3 is too small; use a whole number, 4 or more"):
        whole_number(3, "x", least=4)
