"""Every wrong core is caught, soon, and by those who should notice."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from gruppetto.chaos import Cores, live, read_plan, swarm
from gruppetto.chaos.canaries import CANARIES, Canary
from gruppetto.chaos.invariants import WORLD_INVARIANTS, BrokenWorldError
from gruppetto.chaos.world import World
from gruppetto.chaos.wrong_cuts import AppliesBeforeItIsAnnounced
from gruppetto.chaos.wrong_learners import HoldsUpItsOwnRound
from gruppetto.chaos.wrong_recoveries import GoesBackToAnOlderLife
from gruppetto.chaos.wrong_welcomes import ForgetsWhomItRetired
from gruppetto.protocol.invariants import INVARIANTS

LATE = {
    "AsksOnlyOnce": 346,
    "BooksAPromiseAtOnce": 43,
    "ComparesWithWhatItAdmits": 38,
    "CountsRetriesAsVotes": 155,
    "CutsBetweenCommits": 77,
    "ForgetsItsPromises": 43,
    "ForgetsWhoDeparted": 59,
    "GoesWithoutAWord": 87,
    "HoldsUpItsOwnRound": 34,
    "IgnoresIncarnations": 38,
    "LeavesBeforeItHasAll": 175,
    "MistakesTheDirection": 290,
    "NamesWhoeverWasHere": 86,
    "NeverGivesUp": 193,
    "OverlooksTheLastAnswer": 38,
    "RefusesAMajority": 61,
    "RefusesTheQuorum": 61,
    "RemembersPromisesOfTheDead": 326,
    "SavesAHalfMergedRound": 34,
    "SettlesNothing": 85,
    "TakesAStaleParting": 755,
    "TakesDuplicates": 34,
    "TakesEveryPart": 47,
    "TakesLeaveOfAClosingRound": 1111,
    "TakesWhatIsStale": 116,
    "TrustsWhatItSavedLongAgo": 204,
}
"""Those that live through many seeds, and how many: looked at first is where they were caught, and the others only if
they are caught there no more."""


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_a_wrong_core_is_caught(canary: Canary) -> None:
    late = LATE.get(canary.name, 0)
    seeds = chain(range(late, canary.within), range(late))
    found = next((o for o in swarm(seeds, canary.cores) if o.broken), None)
    assert found is not None, f"{canary.name} lives through {canary.within} seeds"
    assert found.broken in canary.caught_by, found.what


def test_what_thousands_of_seeds_do_not_meet_is_met_by_a_plan() -> None:
    """A body has to overtake a marker just before a boundary. The shipping core lives through it (test_swarm)."""
    plan = read_plan(Path(__file__).parent / "plans" / "applied-before-it-was-announced.json")
    assert live(plan, Cores(learner=AppliesBeforeItIsAnnounced)).broken == "cut-is-consistent"


def test_an_older_life_of_the_syncer_is_met_by_a_plan_too() -> None:
    """Swarms need a thousand seeds for it."""
    plan = read_plan(Path(__file__).parent / "plans" / "back-to-an-older-life.json")
    assert not live(plan).broken
    assert live(plan, Cores(learner=GoesBackToAnOlderLife)).broken == "epochs-only-grow"


def test_alone_and_told_to_wait_it_would_wait_for_itself() -> None:
    """What a round has made is on its way when the next one asks, and both fragments are due in every round."""
    plan = read_plan(Path(__file__).parent / "plans" / "held-up-by-its-own-round.json")
    assert live(plan, Cores(learner=HoldsUpItsOwnRound)).broken == "progress-resumes"


def test_hardly_an_invariant_is_without_a_canary() -> None:
    """These of the protocol's own are broken only where another one breaks first."""
    judged = {name for canary in CANARIES for name in canary.caught_by} | {"epochs-only-grow"}  # by the plan above
    assert set(WORLD_INVARIANTS) <= judged
    assert set(INVARIANTS) - judged <= {"one-round-at-a-time", "weights-are-positive", "own-epoch"}


def test_a_rare_one_is_caught_by_the_plan_that_found_it() -> None:
    plan = read_plan(Path(__file__).parent / "plans" / "slept-while-its-slot-was-leased.json")
    World(plan).run()
    with pytest.raises(BrokenWorldError, match="progress-resumes"):
        World(plan, make_syncer=ForgetsWhomItRetired).run()
