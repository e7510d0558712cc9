"""What a row costs is told beforehand, and about as it then is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gruppetto.errors import SettingError
from gruppetto.sim.failures import Cause, Recovery
from gruppetto.sim.goodput import run
from gruppetto.sim.load import MAX_EVENTS, check_load, expected_faults, expected_steps
from gruppetto.sim.paper import CHIPS, LEARNERS
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
