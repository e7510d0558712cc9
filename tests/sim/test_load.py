"""What a row costs is told beforehand, and about as it then is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gruppetto.errors import SettingError
from gruppetto.sim.failures import Cause, Fault, Recovery
from gruppetto.sim.goodput import run
from gruppetto.sim.load import MAX_EVENTS, check_load, expected_faults, expected_steps
from gruppetto.sim.paper import CHIPS, LEARNERS
from gruppetto.sim.party import Party
from gruppetto.sim.scenario import Outages, Scenario

RACKS = Cause(name="rack", mtbi_s=50 * 86_400.0, recovery=Recovery(scale_s=600.0), source_chips=64)


def test_as_many_faults_come_as_are_expected() -> None:
    scenario = Scenario(chips=300_000, hours=24.0, causes=(RACKS,))
    came = sum(1 for _ in itertools.takewhile(lambda fault: fault.at_s < scenario.horizon_s, scenario.faults(1)))
    expected = expected_faults("data-parallel", scenario)
    assert abs(came - expected) < 4 * expected**0.5


def test_the_events_of_a_fleet_are_of_the_size_that_is_expected() -> None:
    for stride in (1, 10):
        scenario = Scenario(chips=8, learners=4, hours=0.5, stride=stride)
        events = run("decoupled", scenario, 0).events
        assert events is not None
        assert 1 < events / expected_steps("decoupled", scenario) < 20


def test_the_grid_of_the_paper_is_far_from_the_bound() -> None:
    for chips, learners in itertools.product(CHIPS, LEARNERS):
        scenario = Scenario(chips=chips, learners=learners)
        check_load("decoupled", scenario)
        assert expected_faults("decoupled", scenario) + expected_steps("decoupled", scenario) < MAX_EVENTS / 50


def test_each_system_is_judged_by_what_it_does() -> None:
    short = Scenario(chips=8, learners=8, step_s=1e-9)
    check_load("data-parallel", short)  # knows no steps
    for system in ("elastic", "diloco", "decoupled"):
        with pytest.raises(SettingError, match=f"{system} has about .* longer --step-s"):
            check_load(system, short)
    cut = Scenario(chips=8, link_outages=Outages(mtbi_s=1e-6, mean_s=1e-6))
    check_load("elastic", cut)  # has no link
    with pytest.raises(SettingError, match="decoupled has about"):
        check_load("decoupled", cut)
    check_load("decoupled", replace(cut, link_outages=Outages(mtbi_s=60.0, mean_s=60.0)))


def test_each_learner_counts_with_its_own_steps() -> None:
    def beside(step_s: float) -> Scenario:
        parties = (Party(name="a", chips=8, step_s=1.0), Party(name="b", chips=8, step_s=step_s))
        return Scenario(chips=16, learners=2, hours=0.5, parties=parties)

    beats = expected_steps("decoupled", beside(1.0)) - 2 * 1800
    assert expected_steps("decoupled", beside(0.5)) == pytest.approx(1800 + 3600 + beats)
    with pytest.raises(SettingError, match=r"e\+15 steps in 0.5 hours"):
        check_load("decoupled", beside(1e-12))
    # It would go through the faults of a step that never ends.
    with pytest.raises(SettingError, match=r"have no whole step of 1e\+300 s"):
        beside(1e300)


def test_a_row_in_which_nobody_rides_is_refused() -> None:
    guest = Party(name="guest", chips=8, joins_s=3600.0)
    with pytest.raises(SettingError, match="no learner is there in 1 hours; simulate longer"):
        Scenario(chips=8, learners=1, hours=1.0, parties=(guest,))


@pytest.mark.parametrize("system", ["elastic", "diloco", "decoupled"])
def test_who_is_away_for_ever_waits_through_no_more_than_the_faults_of_the_row(system: str) -> None:
    """Of 10^300 seconds there are faults without end."""
    scenario = Scenario(chips=64, learners=2, hours=0.1, mtbi_s=86_400.0)
    gone = Fault(at_s=60.0, first_chip=0, num_chips=64, down_s=1e300, notice=True)
    slow = replace(scenario.hardware.elastic, scale_down_s=1e300)
    for one in (
        replace(scenario, planned=(gone,)),
        replace(scenario, hours=1.0, hardware=replace(scenario.hardware, elastic=slow)),
    ):
        assert run(system, one, 0).goodput < 0.9
