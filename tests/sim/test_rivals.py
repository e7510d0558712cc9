"""The rivals: closed forms, and who beats whom under the same faults."""

from __future__ import annotations

import itertools

import pytest

from gruppetto.sim.elastic import ElasticJob
from gruppetto.sim.failures import YEAR_S, Cause, Fault, draw_faults
from gruppetto.sim.goodput import run
from gruppetto.sim.paper import FITTED
from gruppetto.sim.rivals import RestartCosts, data_parallel, diloco, elastic
from gruppetto.sim.scenario import Scenario

CHIP = Cause(name="chip", mtbi_s=YEAR_S, recovery=FITTED.recovery)


def jobs(learners: int, chips: int) -> list[ElasticJob]:
    share = chips // learners
    return [
        ElasticJob(
            first_chip=m * share,
            chips=share,
            faults=draw_faults([CHIP], chips=chips, seed=0),
            costs=FITTED.elastic,
        )
        for m in range(learners)
    ]


@pytest.mark.parametrize("chips", [150_000, 600_000, 1_200_000])
def test_without_elasticity_a_cycle_is_a_stretch_of_whole_checkpoints_and_a_restart(chips: int) -> None:
    """Kept of an exponential stretch with rate λ, in pieces of c: c / (exp(λc) − 1)."""
    import math

    costs, rate = RestartCosts(restart_s=70.0, checkpoint_s=5.0), CHIP.rate(chips)
    faults = draw_faults([CHIP], chips=chips, seed=0)
    found = data_parallel(faults, chips=chips, horizon_s=10 * 86_400, costs=costs).goodput
    kept_s = costs.checkpoint_s / math.expm1(rate * costs.checkpoint_s)
    assert found == pytest.approx(kept_s / (1 / rate + costs.restart_s), abs=0.01)


def test_a_fault_that_is_announced_costs_no_work() -> None:
    costs = RestartCosts(restart_s=30.0, checkpoint_s=10.0)
    told = [Fault(at_s=25.0, first_chip=0, num_chips=1, down_s=600.0, notice=True)]
    assert data_parallel(told, chips=4, horizon_s=100.0, costs=costs).goodput == pytest.approx(0.70)


def test_one_synchronous_learner_is_an_elastic_job() -> None:
    one, alone = jobs(1, 300_000), jobs(1, 300_000)
    together = diloco(one, step_s=1.0, sync_period=24, horizon_s=86_400)
    assert together.goodput == pytest.approx(elastic(alone[0], step_s=1.0, horizon_s=86_400).goodput, abs=0.001)


def test_waiting_for_each_other_costs_more_the_longer_the_period_is_not() -> None:
    """At H = 1 every pause of anybody is everybody's; at a longer period some of them overlap."""
    goodput = [diloco(jobs(8, 600_000), step_s=1.0, sync_period=h, horizon_s=4 * 3600).goodput for h in (1, 24, 240)]
    assert goodput == sorted(goodput)


def test_under_the_same_faults_decoupled_learners_come_first() -> None:
    base = Scenario(chips=1_200_000, learners=8, hours=3, stride=16)
    goodput = {system: run(system, base, 0).goodput for system in ("data-parallel", "elastic", "diloco", "decoupled")}
    assert list(goodput.values()) == sorted(goodput.values())


def test_every_system_is_given_the_same_faults() -> None:
    one, eight = Scenario(chips=600_000), Scenario(chips=600_000, learners=8, stride=4)
    assert list(itertools.islice(one.faults(5), 100)) == list(itertools.islice(eight.faults(5), 100))
