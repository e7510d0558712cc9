"""Yardsticks against a dumb twin, and histories of honest learners: none of them may ever be too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.norms import MIN_VOTES, WINDOW, Ballot, Yardsticks, excess
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.units import Fragment, LearnerId, Round, Version

P0 = Fragment(0)
FACTOR = 10.0
norms = st.floats(0.0, 1e30)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdefghijklmnopqrstuvwxyz"), norms), max_size=80))
def test_a_ballot_is_the_lower_median_of_the_votes_that_are_kept(votes: list[tuple[int, str, float]]) -> None:
    ballot, kept, round = Ballot(before=(7.0,)), {}, 0
    for later, name, norm in votes:
        round += later
        ballot.cast(LearnerId(name), Round(round), (norm,))
        kept[round, name] = norm
        recent = sorted({r for r, _ in kept})[-2:]
        for vote in list(kept):
            if len(kept) > WINDOW and vote[0] not in recent:
                del kept[vote]
        counted = [norm for norm in kept.values() if norm > 0]
        assert ballot.medians == ((median_low(counted) if len(counted) >= MIN_VOTES else 7.0),)


def test_a_second_vote_in_a_round_replaces_the_first() -> None:
    ballot = Ballot(before=(1.0,))
    for _ in range(20):
        ballot.cast(LearnerId("a"), Round(1), (1000.0,))
    for name in "bcd":
        ballot.cast(LearnerId(name), Round(1), (2.0,))
    assert ballot.medians == (2.0,)


def test_everybody_has_a_vote_however_many_there_are() -> None:
    ballot = Ballot(before=(1.0,))
    for round in (1, 2):
        for m in range(100):
            ballot.cast(LearnerId(f"{m}"), Round(round), (1.0 if m < 51 else 1000.0,))
    assert ballot.medians == (1.0,)


def test_half_of_a_fleet_cannot_lift_a_yardstick() -> None:
    for m in (1, 2, 4, 8):
        ballot = Ballot(before=(1.0,))
        for round in range(1, 6):
            for i in range(m):
                ballot.cast(LearnerId(f"good {i}"), Round(round), (1.0,))
                ballot.cast(LearnerId(f"bad {i}"), Round(round), (1000.0,))
        assert ballot.medians == (1.0,)


def test_the_first_contribution_is_compared_with_the_values() -> None:
    yardsticks = Yardsticks(sync_period=4)
    yardsticks.begin([(20.0, 0.0)])
    assert excess((1000.0, 1000.0), yardsticks.of(P0), FACTOR) == ((0, 2.0),)
    assert excess((19.0, 1000.0), yardsticks.of(P0), FACTOR) == ()
    assert Yardsticks(sync_period=4).of(P0) == ()


def test_a_yardstick_that_is_no_number_is_none() -> None:
    yardsticks = Yardsticks(sync_period=4)
    yardsticks.begin([(float("nan"), float("inf"))])
    assert yardsticks.of(P0) == (0.0, 0.0)


def test_pieces_that_hardly_anybody_trains_do_not_become_still() -> None:
    yardsticks = Yardsticks(sync_period=1)
    yardsticks.begin([(1.0,)])
    for round in range(1, 40):
        for name in "abc":
            yardsticks.offered(LearnerId(name), Round(round), P0, (0.0,), base_version=Version(round - 1))
    assert excess((0.9,), yardsticks.of(P0), FACTOR) == ()


def test_a_piece_without_votes_is_measured_by_the_share_that_others_change() -> None:
    """Round 1 asks for one fragment, round 2 for another: who is a thousand times too long is so in both."""
    yardsticks = Yardsticks(sync_period=2)
    yardsticks.begin([(10.0,), (100.0,)])
    for m in range(5):
        yardsticks.offered(LearnerId(f"{m}"), Round(1), P0, (1e-4 if m else 0.1,), base_version=Version(0))
    assert excess((3e-3,), yardsticks.of(Fragment(1)), FACTOR) == ()
    assert excess((3.0,), yardsticks.of(Fragment(1)), FACTOR) == ((0, pytest.approx(1e-3)),)


def test_a_restart_begins_with_what_is_usual() -> None:
    yardsticks = Yardsticks(sync_period=1)
    yardsticks.begin([(1.0,), (1.0,)])
    for round in (1, 2):
        for name in "ab":
            yardsticks.offered(LearnerId(name), Round(round), P0, (0.01,), base_version=Version(round - 1))
    again = Yardsticks(sync_period=1)
    again.begin(yardsticks.value_norms, yardsticks.voted(2), yardsticks.share)
    for known in (yardsticks, again):
        assert known.of(P0) == (0.01,) and known.of(Fragment(1)) == (0.01,) and known.share == 0.01


# ── honest histories ────────────────────────────────────────────────────────────────────────────────────────────


def too_long(
    norm_of: Callable[[int, int, int], float], *, learners: int, period: int, rounds: int, value: float = 1.0
) -> Iterator[tuple[int, int]]:
    """(round, learner) of whoever is too long, where ``norm_of(learner, first step, last step)`` is its norm.

    One fragment for every place in the period, so that a fragment's first contribution is of 1, 2, … steps.
    """
    schedule = Schedule(num_fragments=period, sync_period=period)
    yardsticks = Yardsticks(sync_period=period)
    yardsticks.begin([(value,)] * period)
    versions = dict.fromkeys(range(period), 0)
    for t in range(1, rounds + 1):
        for p in schedule.due(Round(t)):
            for m in range(learners):
                norm = norm_of(m, versions[p] + 1, t)
                if excess((norm,), yardsticks.of(p), FACTOR):
                    yield t, m
                yardsticks.offered(LearnerId(f"{m}"), Round(t), p, (norm,), base_version=Version(versions[p]))
            versions[p] = t


fleets = pytest.mark.parametrize("learners", [1, 2, 3, 4, 5, 8, 17, 64])
periods = pytest.mark.parametrize("period", [1, 2, 5, 24, 100])


@fleets
@periods
@pytest.mark.parametrize("warmup", [10, 100, 1000])
def test_a_learning_rate_that_is_warmed_up_from_nothing(learners: int, period: int, warmup: int) -> None:
    def norm(m: int, first: int, last: int) -> float:
        return sum(min(1.0, s / warmup) for s in range(first, last + 1)) / (2 * period)

    assert list(too_long(norm, learners=learners, period=period, rounds=8 * period)) == []


@fleets
@periods
def test_random_walks_too(learners: int, period: int) -> None:
    def norm(m: int, first: int, last: int) -> float:
        return sum(min(1.0, s / 200) ** 2 for s in range(first, last + 1)) ** 0.5 / (2 * period) ** 0.5

    assert list(too_long(norm, learners=learners, period=period, rounds=8 * period)) == []


@fleets
def test_counters_of_two_periods_after_a_missed_round(learners: int) -> None:
    def norm(m: int, first: int, last: int) -> float:
        missed = (last // 24 + m) % 5 == 0
        return (2.0 if missed else 1.0) * (last - first + 1) / 24

    assert list(too_long(norm, learners=learners, period=24, rounds=480, value=10.0)) == []


@fleets
def test_a_fresh_optimizer_takes_longer_steps(learners: int) -> None:
    """AdamW moves by the learning rate in its first steps, and by a fraction of it once gradients disagree."""

    def norm(m: int, first: int, last: int) -> float:
        is_fresh = last > 24 and (last // 24) % 6 == m % 6  # at the beginning all are
        return (5.0 if is_fresh else 1.0) * (last - first + 1) / 24

    assert list(too_long(norm, learners=learners, period=24, rounds=480, value=10.0)) == []


@fleets
def test_a_sudden_change_for_all_is_followed_within_two_rounds_of_the_fragment(learners: int) -> None:
    """Thirty times longer from one step to the next: clipped at first, then usual."""

    def norm(m: int, first: int, last: int) -> float:
        return 30.0 if last > 240 else 1.0

    clipped = list(too_long(norm, learners=learners, period=24, rounds=1200))
    assert clipped and max(t for t, _ in clipped) <= 240 + 24 * max(2, -(-WINDOW // learners))
