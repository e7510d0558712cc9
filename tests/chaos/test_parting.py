"""A learner leaves on notice in the small world, at many moments, while something else goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gruppetto.chaos import live
from gruppetto.chaos.exhaust import small_world
from gruppetto.chaos.plan import CRASH_POINTS, SYNCER, Fault, FaultKind, Plan
from gruppetto.chaos.world import World

MOMENTS_S = [1.0 + 0.2 * n for n in range(12)]
AFTER_S = (0.0, 0.06, 0.3)
"""Between the notice and the other fault: before what is given has come, while it is folded, and after."""


def leaves(at_s: float, how: str, *others: Fault) -> Plan:
    leave = Fault(at_s=at_s, kind=FaultKind.LEAVE, who="a", lasts_s=0.1, how=how)
    return small_world((leave, *others), min_quorum=1)


@pytest.mark.parametrize("point", CRASH_POINTS, ids=lambda point: point or "at once")
def test_the_syncer_dies_around_the_fold(point: str) -> None:
    for at_s in MOMENTS_S:
        for later_s in AFTER_S:
            crash = Fault(at_s=at_s + 1.0 + later_s, kind=FaultKind.CRASH_SYNCER, who=SYNCER, lasts_s=0.1, how=point)
            outcome = live(leaves(at_s, "notice", crash))
            assert not outcome.broken, f"{outcome.what}\n{outcome.plan}"


@pytest.mark.parametrize("how", ["notice", "storm"])
@pytest.mark.parametrize("stale", ["reject", "accept"])
@pytest.mark.parametrize(
    "other", [FaultKind.DOUBLE, FaultKind.DIVERGE, FaultKind.CUT, FaultKind.KILL, FaultKind.NOT_FINITE]
)
def test_something_else_goes_wrong_meanwhile(how: str, stale: str, other: FaultKind) -> None:
    for at_s in MOMENTS_S:
        for later_s in AFTER_S:
            who = SYNCER if other is FaultKind.DIVERGE else "a"
            fault = Fault(at_s=at_s + later_s, kind=other, who=who, lasts_s=0.5)
            plan = leaves(at_s, how, fault)
            outcome = live(replace(plan, setting=replace(plan.setting, stale=stale)))  # type: ignore[arg-type]
            assert not outcome.broken, f"{outcome.what}\n{outcome.plan}"


def test_in_a_calm_world_nothing_that_was_trained_is_lost_by_leaving() -> None:
    """But for a step of one fragment, on top of a contribution that was on its way."""
    for at_s in MOMENTS_S:
        world = World(leaves(at_s, "notice"))
        world.run()
        assert world.syncer is not None
        books = world.syncer.core.ledger
        assert books.lost_by == {}
        assert books.discarded_by.get("left", 0) <= world.plan.learners[0].tokens_per_step, at_s
