"""What is to be simulated: impossible values, and that each dial does something."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from gruppetto.errors import SettingError
from gruppetto.protocol import ProtocolSetting
from gruppetto.sim import Link, SyncerCosts
from gruppetto.sim.elastic import ElasticCosts
from gruppetto.sim.failures import Cause, Recovery
from gruppetto.sim.goodput import Outcome, run, run_all, tabulate
from gruppetto.sim.machine import MachineProfile
from gruppetto.sim.paper import FITTED, GOODPUT
from gruppetto.sim.party import Party
from gruppetto.sim.scenario import Outages, Scenario

BASE = Scenario(chips=300_000, learners=2, hours=1, stride=10)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chips": 0}, "simulate.chips: chips is 0"),
        ({"learners": 0}, "simulate.learners: learners is 0"),
        ({"learners": 400_000}, "400000 learners on 300000 chips; use at most 300000"),
        ({"mtbi_s": -1.0}, "simulate.mtbi_s: mtbi_s is -1"),
        ({"mtbi_s": math.nan}, "mtbi_s is nan"),
        ({"hours": 0.0}, "hours is 0"),
        ({"hours": math.inf}, "hours is inf"),
        ({"step_s": 0.0}, "step_s is 0"),
        ({"spread": -0.1}, "spread is -0.1"),
        ({"jitter": 1.0}, "jitter is 1"),
        ({"stride": 0}, "stride is 0"),
        ({"stride": 10_000}, "no whole step of 10000 s"),
    ],
)
def test_impossible_scenarios_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        replace(BASE, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"chips": 150_000},
        {"learners": 4},
        {"mtbi_s": 1e6},
        {"hours": 2.0},
        {"step_s": 2.0},
        {"spread": 0.5},
        {"jitter": 0.2},
        {"stride": 20},
        {"hardware": replace(FITTED, elastic=ElasticCosts(slice_chips=256, scale_down_s=60, scale_up_s=60))},
        {"causes": (Cause(name="rack", mtbi_s=3e4, recovery=Recovery(scale_s=600), source_chips=4096),)},
        {"link": Link(latency_s=2.0)},
        {"link_outages": Outages(mtbi_s=600.0, mean_s=60.0)},
        {"costs": SyncerCosts(merge_s=15.0)},
        {"syncer_outages": Outages(mtbi_s=600.0, mean_s=60.0)},
        {"link": Link(latency_s=0.02, bytes_per_s=1e6), "fragment_bytes": 10**7},
        {"protocol": ProtocolSetting(num_learners=2, min_quorum=2)},
    ],
    ids=lambda change: "+".join(change),
)
def test_every_dial_changes_something(change: dict[str, Any]) -> None:
    def seen(scenario: Scenario) -> tuple[object, ...]:
        o = run("decoupled", scenario, 0)
        return o.goodput, o.uptime, o.rounds, o.participation, o.merged

    assert seen(replace(BASE, **change)) != seen(BASE)


def test_processes_do_not_change_the_outcome() -> None:
    jobs = [(system, replace(BASE, stride=60), seed) for system in ("elastic", "decoupled") for seed in (0, 1)]
    heard: dict[int, Outcome] = {}
    passed: list[tuple[int, float]] = []
    together = run_all(jobs, processes=2, done=heard.__setitem__, passed=lambda *news: passed.append(news))
    assert together == [heard[job] for job in range(len(jobs))] == run_all(jobs)
    for job in (2, 3):
        times = [now_s for one, now_s in passed if one == job]
        assert times == sorted(times) and times[-1] == BASE.horizon_s, "what goes on in a row is told"
    rows = tabulate(together)
    assert [(r.system, r.learners, r.seeds) for r in rows] == [("elastic", 1, 2), ("decoupled", 2, 2)]
    assert all(r.ci95 is not None and r.ci95 > 0 for r in rows)


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(SettingError, match="'magic' is no system"):
        run("magic", BASE, 0)


def test_the_constants_explain_the_cheap_cells() -> None:
    """One seed of the rows that cost nothing; the whole grid is in docs/simulator.md."""
    for system, allowed in (("elastic", 0.03), ("data-parallel", 0.05)):
        for chips, paper in GOODPUT[system, 1].items():
            assert run(system, Scenario(chips=chips), 0).goodput == pytest.approx(paper, abs=allowed), (system, chips)


def test_a_machine_prices_the_syncer() -> None:
    slow = MachineProfile(hosts=1).costs(fragment_elements=10**9)
    shared = MachineProfile(hosts=4).costs(fragment_elements=10**9)
    assert slow.merge_s == pytest.approx(4 * shared.merge_s)
    assert slow.persist_s == pytest.approx(16.0)
    with pytest.raises(SettingError, match=r"machine\.persist_bytes_per_s"):
        MachineProfile(persist_bytes_per_s=0)
    with pytest.raises(SettingError, match=r"machine\.latency_s"):
        MachineProfile(latency_s=-1)


def test_a_slice_takes_all_learners_on_it() -> None:
    """Sixteen learners on two hosts: what strikes one chip takes the eight learners of its host, and no other."""
    elastic = replace(FITTED.elastic, slice_chips=8)
    scenario = Scenario(chips=16, learners=16, mtbi_s=6 * 3600.0, hardware=replace(FITTED, elastic=elastic))
    for fault in itertools.islice(scenario.faults(3), 50):
        assert (fault.first_chip, fault.num_chips) in ((0, 8), (8, 8))
    alone = replace(scenario, learners=2)
    struck = [fault.first_chip // 8 for fault in itertools.islice(alone.faults(3), 50)]
    assert struck == [fault.first_chip // 8 for fault in itertools.islice(scenario.faults(3), 50)]
    assert all(fault.num_chips == 1 for fault in itertools.islice(alone.faults(3), 50))


def test_unequal_learners_within_a_slice_are_lost_with_it() -> None:
    """Two that share a host with the first chips of a third: what strikes the host takes all that lies on it."""
    elastic = replace(FITTED.elastic, slice_chips=8)
    parties = tuple(Party(name=name, chips=chips) for name, chips in (("a", 3), ("b", 3), ("c", 26)))
    scenario = Scenario(
        chips=32,
        learners=3,
        parties=parties,
        mtbi_s=6 * 3600.0,
        hardware=replace(FITTED, elastic=elastic),
    )
    struck = {(f.first_chip, f.num_chips) for f in itertools.islice(scenario.faults(3), 400)}
    assert struck == {(0, 8), *((chip, 1) for chip in range(8, 32))}
    first = next(f.at_s for f in scenario.faults(3) if f.num_chips == 8)
    for party in (0, 1):
        job = scenario.job(party, of=3, seed=3)
        before = job.train(0.0, 1.0, 10**6)
        assert job.train(before.done_s, 1.0).dark_s == first, "they are gone at the same moment"
