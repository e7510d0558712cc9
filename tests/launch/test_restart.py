"""Who is started again, when, and who is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.launch.restart import FIRST_PAUSE_S, FORGIVEN_AFTER_S, LONGEST_PAUSE_S, Restarts


def die(one: Restarts, now: float = 0.0, *, lived_s: float = 1.0, code: int = -9) -> float | None:
    """The pause before it is started again, after which it is."""
    one.died(now, lived_s=lived_s, code=code)
    pause_s = None if one.due_at is None else one.due_at - now
    if pause_s is not None:
        one.started()
    return pause_s


def test_the_pause_doubles_up_to_half_a_minute_and_is_forgotten_after_a_minute_of_life() -> None:
    one = Restarts(most=99)
    assert [die(one) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert die(one, lived_s=FORGIVEN_AFTER_S) == FIRST_PAUSE_S
    assert die(one) == 2 * FIRST_PAUSE_S
    assert one.count == 10


def test_a_mistake_of_the_user_is_not_repeated() -> None:
    one = Restarts(most=5)
    assert die(one, code=2) is None
    assert one.given_up == "it says what has to be mended"


def test_who_never_takes_part_is_given_up() -> None:
    one = Restarts(most=3)
    assert [die(one, code=1) for _ in range(3)] == [0.5, 1.0, None]
    assert one.given_up == "it died 3 times without having taken part"
    assert one.due_at is None and not one.is_due(1e9)


def test_who_has_taken_part_is_started_for_ever() -> None:
    one = Restarts(most=2)
    die(one)
    one.took_part()
    assert None not in [die(one) for _ in range(50)]


def test_nothing_is_started_again_where_that_is_off() -> None:
    one = Restarts(most=0)
    one.took_part()
    assert die(one) is None
    assert one.given_up


@given(
    st.lists(st.tuples(st.floats(0, 200), st.sampled_from([-9, -15, 1]), st.booleans()), max_size=60), st.integers(1, 9)
)
def test_it_is_due_within_bounds_or_given_up(lives: list[tuple[float, int, bool]], most: int) -> None:
    one, now = Restarts(most=most), 0.0
    for lived_s, code, took_part in lives:
        if took_part:
            one.took_part()
        now += lived_s
        one.died(now, lived_s=lived_s, code=code)
        if one.given_up:
            assert one.due_at is None
            break
        assert one.due_at is not None
        assert now + FIRST_PAUSE_S <= one.due_at <= now + LONGEST_PAUSE_S
        assert one.is_due(one.due_at)
        one.started()


@pytest.mark.parametrize("code", [-9, 1])
def test_a_process_that_lives_is_not_due(code: int) -> None:
    one = Restarts(most=5)
    assert not one.is_due(1e9)
    die(one, code=code)
    assert not one.is_due(1e9)
