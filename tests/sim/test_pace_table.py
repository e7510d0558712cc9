"""What the rules of a round give: the figures of an independent event model, and the two wrong clock rules.

Eight learners, step 1 s with ±10 % jitter, 20 ms latency, 50 ms merge.
"""

from __future__ import annotations

from typing import Any

import pytest

from gruppetto.protocol.events import StepDone, StepStarted
from gruppetto.protocol.invariants import Observer
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World

WARM_UP_S, UNTIL_S = 100.0, 700.0


class Watched(SyncerCore):
    """The shipping core under the eyes of the invariants."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.observer = Observer()

    def step(self, now: float, event: Any) -> Any:
        actions = super().step(now, event)
        self.observer.saw(self, event, actions)
        return actions


def fleet(*step_s: float) -> list[LearnerSpec]:
    link = Link(latency_s=0.02)
    return [LearnerSpec(name=f"learner-{i}", pace=Pace(step_s=s, jitter=0.1), link=link) for i, s in enumerate(step_s)]


def measure(
    specs: list[LearnerSpec], make_learner: type[LearnerCore] = LearnerCore, until_s: float = UNTIL_S, **setting: Any
) -> dict[str, Any]:
    world = World(
        ProtocolSetting(num_learners=len(specs), **{"start_learners": len(specs), **setting}),
        specs,
        seed=1,
        costs=SyncerCosts(merge_s=0.05),
        make_learner=make_learner,
        make_syncer=Watched,
    )
    world.run(until=until_s)
    closed = [(t, c) for t, c in world.closed if t >= WARM_UP_S]
    return {
        "period_s": (closed[-1][0] - closed[0][0]) / (len(closed) - 1),
        "participation": sum(len(c.participants) for _, c in closed) / len(closed) / len(specs),
        "grace_s": sum(c.grace_spent_s for _, c in closed) / len(closed),
        "rounds_of": {n: sum(n in c.participants for _, c in closed) / len(closed) for n in world.learners},
        "world": world,
    }


UNEQUAL = (1.0, 1.0, 1.0, 1.0, 1.18, 1.18, 1.18, 1.18)
ONE_SLOW = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0)
ONE_FAST = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.25)


@pytest.mark.parametrize(
    ("step_s", "setting", "period_s", "participation"),
    [
        pytest.param(UNEQUAL, {"grace": False}, 0.99, 0.12, id="no grace: one answer a round"),
        pytest.param(UNEQUAL, {"snapshot_window": 0}, 1.00, 0.86, id="grace, answers at the next boundary"),
        pytest.param(UNEQUAL, {}, 0.99, 1.00, id="grace and snapshots: everybody"),
        pytest.param(UNEQUAL, {"min_quorum": 8}, 1.19, 1.00, id="K = M: the slowest sets the pace"),
        pytest.param(ONE_SLOW, {}, 1.00, 0.94, id="one four times slower rides along"),
    ],
)
def test_period_and_participation(
    step_s: tuple[float, ...], setting: dict[str, Any], period_s: float, participation: float
) -> None:
    seen = measure(fleet(*step_s), **setting)
    assert seen["period_s"] == pytest.approx(period_s, rel=0.03)
    assert seen["participation"] == pytest.approx(participation, abs=0.03)


def test_with_snapshots_the_window_is_hardly_used() -> None:
    assert measure(fleet(*UNEQUAL))["grace_s"] == pytest.approx(0.04, abs=0.005)


def test_a_freak_sets_the_pace_alone_but_not_against_a_quorum() -> None:
    assert measure(fleet(*ONE_FAST), until_s=300.0, min_quorum=1)["period_s"] == pytest.approx(0.25, rel=0.03)
    assert measure(fleet(*ONE_FAST), until_s=300.0, min_quorum=4)["period_s"] == pytest.approx(1.00, rel=0.03)


def test_a_syncer_slower_than_the_steps_still_hears_everybody() -> None:
    """All learners are past every round before it asks: their snapshots have to be of what is asked all the same."""
    world = World(
        ProtocolSetting(num_learners=8, start_learners=8),
        fleet(*UNEQUAL),
        seed=1,
        costs=SyncerCosts(merge_s=1.5),
        make_syncer=Watched,
    )
    world.run(until=300.0)
    closed = [c for t, c in world.closed if t >= 50.0]
    assert sum(len(c.participants) for c in closed) / len(closed) / 8 > 0.97
    assert world.learners["learner-0"].core.clock > 1.3 * world.syncer.round


class StampedAtTheEnd(LearnerCore):
    """Wrong: the Lamport stamp is taken when the step ends."""

    def _on_step_started(self, now: float, event: StepStarted) -> None:
        self._started_at = now

    def _on_step_done(self, now: float, event: StepDone) -> None:
        self.clock = 1 + max(self.clock, self.newest_round)
        super()._on_step_done(now, event)


class PrivateClock(LearnerCore):
    """Wrong: the clock counts own steps only and never looks at the rounds."""

    def _on_step_started(self, now: float, event: StepStarted) -> None:
        self.clock += 1
        self._started_at = now


def test_stamping_at_the_end_drives_the_syncer_too_fast() -> None:
    """Eight staggered learners make every stamp news: up to M rounds per step."""
    link = Link(latency_s=0.001)
    staggered = [LearnerSpec(name=f"learner-{i}", pace=Pace(step_s=1.0), link=link, joins_at=i / 8) for i in range(8)]
    right = measure(staggered, until_s=300.0, start_learners=1, grace=False)
    wrong = measure(staggered, StampedAtTheEnd, until_s=300.0, start_learners=1, grace=False)
    braked = measure(staggered, StampedAtTheEnd, until_s=300.0, start_learners=1)
    assert right["period_s"] == pytest.approx(1.0, rel=0.03)
    assert wrong["period_s"] < 0.2
    # The grace window waits for those who have no snapshot of rounds that come too fast: it brakes, it does not cure.
    assert braked["period_s"] < 0.6


def test_with_a_private_clock_the_slower_learner_falls_out_for_ever() -> None:
    """Its snapshots belong to rounds long past, so it can only answer at boundaries, and misses more and more."""
    specs = fleet(1.0, 1.0, 1.0, 1.18)
    right = measure(specs, min_quorum=4)["world"].learners["learner-3"].core
    wrong = measure(specs, make_learner=PrivateClock, min_quorum=3)["world"]
    assert right.newest_round - right.clock <= 1
    behind = wrong.syncer.round - wrong.learners["learner-3"].core.clock
    assert behind > 0.1 * wrong.syncer.round


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = measure(fleet(*UNEQUAL))["world"], measure(fleet(*UNEQUAL))["world"]
    assert first.closed == second.closed
    assert first.syncer.ledger == second.syncer.ledger
