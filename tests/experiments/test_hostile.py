"""Six healthy learners, one that sends NaN, one that sends everything a thousand times too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.experiments.hostile import ALONE, hostile_arms
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.riding import ride
from gruppetto.experiments.store import Result

ROUNDS = 32
CLIPS, REFUSES, OFF = "with them, gate clips", "gate refuses", "gate off"
RUINED = 2.0
"""A loss so many times that of the healthy ones, or none at all."""


@pytest.fixture(scope="module")
def found(short: Ride, cache: Path) -> dict[str, Result]:
    """Every arm once, short."""
    return {arm.name: ride(arm.ride, cache) for arm in hostile_arms(short.but(rounds=ROUNDS, eval_windows=40))}


def test_with_the_gate_two_bad_learners_cost_the_healthy_ones_nothing(found: dict[str, Result]) -> None:
    for name in (CLIPS, REFUSES):
        assert found[name]["loss"] <= 1.01 * found[ALONE]["loss"], name
        assert found[name]["rejected"]["not-finite"] > 0


def test_who_is_too_long_is_clipped_or_refused_every_time_and_nobody_else(found: dict[str, Result]) -> None:
    clip, reject = found[CLIPS], found[REFUSES]
    # One contribution a round, but for a few that come too late.
    assert clip["clipped"].keys() == {"norm"} and ROUNDS - 5 < clip["clipped"]["norm"] <= ROUNDS
    assert reject["clipped"] == {} and ROUNDS - 5 < reject["rejected"]["norm"] <= ROUNDS
    assert found[ALONE]["clipped"] == {} and found[ALONE]["rejected"].keys() <= {"late"}


def test_honest_contributions_go_with_the_momentum(found: dict[str, Result]) -> None:
    assert min(found[ALONE]["cosines"].values()) > 0.1


def test_without_it_the_run_is_ruined(found: dict[str, Result]) -> None:
    loss = found[OFF]["loss"]
    assert loss is None or loss > RUINED * found[ALONE]["loss"]


@pytest.mark.parametrize("rule", ["trimmed", "median", "clipped-rda"])
def test_a_robust_merge_rule_alone_saves_it_too(found: dict[str, Result], rule: str) -> None:
    loss = found[f"gate off, {rule}"]["loss"]
    assert loss is not None and loss < 1.2 * found[ALONE]["loss"]
