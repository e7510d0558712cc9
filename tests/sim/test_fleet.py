"""Decoupled learners on many chips: what the paper promises, under the shipping cores, with failures."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.invariants import Observer
from gruppetto.sim import Link, Pace, SyncerCosts
from gruppetto.sim.elastic import ElasticCosts, ElasticJob
from gruppetto.sim.failures import Cause, Fault, Recovery
from gruppetto.sim.fleet import Fleet
from gruppetto.sim.goodput import fleet_of, run
from gruppetto.sim.paper import FITTED
from gruppetto.sim.rider import RiderSpec
from gruppetto.sim.scenario import Outages, Scenario
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.metrics import measure
from gruppetto.trace.replay import replay

SHORT = Recovery(scale_s=120.0)
UNEQUAL = (1.0, 1.0, 1.0, 1.0, 1.18, 1.18, 1.18, 1.18)


class Watched:
    """Makes shipping cores, all lives of the syncer under one observer."""

    def __init__(self) -> None:
        observer = self.observer = Observer()

        class Core(SyncerCore):
            def step(self, now: float, event: Any) -> Any:
                actions = super().step(now, event)
                observer.saw(self, event, actions)
                return actions

        self.core = Core


def riders(step_s: Sequence[float], *, jitter: float = 0.1, **more: Any) -> list[RiderSpec]:
    costs = ElasticCosts(slice_chips=1, scale_down_s=0.0, scale_up_s=0.0)
    return [
        RiderSpec(
            name=f"learner-{i}",
            job=ElasticJob(first_chip=i, chips=1, faults=(), costs=costs),
            pace=Pace(step_s=s, jitter=jitter),
            link=Link(latency_s=0.02),
            **more,
        )
        for i, s in enumerate(step_s)
    ]


def fleet_for(specs: list[RiderSpec], *, horizon_s: float = 700.0, **setting: Any) -> Fleet:
    protocol = ProtocolSetting(num_learners=len(specs), **{"start_learners": len(specs), **setting})
    costs = SyncerCosts(merge_s=0.05)
    return Fleet(protocol, specs, seed=1, horizon_s=horizon_s, costs=costs, make_syncer=Watched().core)


def ride(specs: list[RiderSpec], **more: Any) -> Fleet:
    fleet = fleet_for(specs, **more)
    fleet.run()
    return fleet


@pytest.mark.parametrize(
    ("step_s", "setting", "period_s", "participation"),
    [
        pytest.param(UNEQUAL, {"grace": False}, 0.99, 0.12, id="no grace: one answer a round"),
        pytest.param(UNEQUAL, {"snapshot_window": 0}, 1.00, 0.86, id="grace, answers at the next boundary"),
        pytest.param(UNEQUAL, {}, 0.99, 1.00, id="grace and snapshots: everybody"),
        pytest.param(UNEQUAL, {"min_quorum": 8}, 1.19, 1.00, id="K = M: the slowest sets the pace"),
        pytest.param((*[1.0] * 7, 4.0), {}, 1.00, 0.94, id="one four times slower rides along"),
        pytest.param((*[1.0] * 7, 0.25), {"min_quorum": 4}, 1.00, 1.00, id="no freak sets the pace at K = 4"),
    ],
)
def test_unequal_fleets(
    step_s: tuple[float, ...], setting: dict[str, Any], period_s: float, participation: float
) -> None:
    fleet = fleet_for(riders(step_s), **setting)
    fleet.engine.run(until=100.0)
    rounds, merged, could_merge = fleet.rounds, fleet.merged, fleet.could_merge
    fleet.run()
    assert 600.0 / (fleet.rounds - rounds) == pytest.approx(period_s, rel=0.03)
    found = (fleet.merged - merged) / (fleet.could_merge - could_merge)
    assert found == pytest.approx(participation, abs=0.03)
    assert fleet.tally.goodput == pytest.approx(1.0, abs=0.001)


@settings(max_examples=8, derandomize=True)
@given(st.sampled_from([2, 4, 8]), st.sampled_from([18_750, 75_000, 150_000, 300_000]), st.integers(0, 1000))
def test_m_learners_are_as_good_as_an_elastic_job_on_an_mth_of_the_chips(m: int, share: int, seed: int) -> None:
    decoupled = run("decoupled", Scenario(chips=m * share, learners=m, hours=8, stride=60), seed)
    alone = [run("elastic", Scenario(chips=share, hours=8), s).goodput for s in range(seed, seed + 3)]
    assert decoupled.goodput == pytest.approx(sum(alone) / len(alone), abs=0.04)


@pytest.mark.parametrize("m", [4, 8, 16])
def test_somebody_always_trains(m: int) -> None:
    """Uptime 100 % from four learners on, in whole per cent, at 1.2 million chips."""
    found = run("decoupled", Scenario(chips=1_200_000, learners=m, hours=6, stride=30), 0)
    assert round(100 * found.uptime) == 100


@pytest.mark.parametrize(("chips", "m"), [(2_400_000, 2), (1_200_000, 4), (150_000, 4)])
def test_goodput_and_uptime_do_not_depend_on_the_stride(chips: int, m: int) -> None:
    fine, coarse = (
        run("decoupled", Scenario(chips=chips, learners=m, hours=0.5, stride=stride), 0) for stride in (1, 8)
    )
    assert coarse.goodput == pytest.approx(fine.goodput, abs=0.001)
    assert coarse.uptime == pytest.approx(fine.uptime, abs=0.001)
    assert coarse.events is not None and fine.events is not None
    assert coarse.events < fine.events / 4


def trace_hash(path: Path, seed: int, **changes: Any) -> str:
    scenario = replace(Scenario(chips=300_000, learners=3, hours=0.2, jitter=0.1, spread=0.2, stride=4), **changes)
    with TraceWriter(path, {"simulated": "test"}) as trace:
        fleet_of(scenario, seed, trace).run()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_seed_gives_the_same_trace_whatever_pythons_hashes(tmp_path: Path) -> None:
    mine = trace_hash(tmp_path / "0.jsonl", 0)
    assert mine == trace_hash(tmp_path / "again.jsonl", 0) != trace_hash(tmp_path / "1.jsonl", 1)
    program = (
        "import hashlib, sys; from pathlib import Path; from gruppetto.sim.goodput import *;"
        "from gruppetto.sim.scenario import *; from gruppetto.trace.log import TraceWriter;"
        "p = Path(sys.argv[1]); t = TraceWriter(p, {'simulated': 'test'});"
        "fleet_of(Scenario(chips=300_000, learners=3, hours=0.2, jitter=0.1, spread=0.2, stride=4), 0, t).run();"
        "t.close(); print(hashlib.sha256(p.read_bytes()).hexdigest())"
    )
    for hash_seed in ("1", "2"):
        said = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / f"hash-{hash_seed}.jsonl")],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        assert said == mine


def test_a_simulated_day_reads_like_a_real_run(tmp_path: Path) -> None:
    """Its trace replays bit for bit, through two lives of the syncer, and its figures are the fleet's own."""
    path = tmp_path / "trace.jsonl"
    scenario = Scenario(
        chips=1024,
        learners=3,
        hours=1.0,
        stride=10,
        mtbi_s=600_000.0,
        causes=(Cause(name="region", mtbi_s=2400.0, recovery=SHORT, source_chips=342),),
        syncer_outages=Outages(mtbi_s=1200.0, mean_s=30.0),
        link_outages=Outages(mtbi_s=900.0, mean_s=60.0),
    )
    with TraceWriter(path, {"simulated": "test"}) as trace:
        fleet = fleet_of(scenario, 4, trace)
        fleet.run()
    assert fleet.lives > 1
    assert max(rider.lives for rider in fleet.riders.values()) > 1
    replayed = replay(path)
    assert replayed.identical, str(replayed.first_difference)
    assert replayed.lives == fleet.lives
    found = measure(path)
    assert found.balanced
    assert found.recorded_tokens == found.tokens
    assert 3590.0 < found.wall_s <= 3600.0  # time runs on across the lives of the syncer
    assert max(found.rounds) == fleet.syncer.published_round


def test_a_region_that_is_lost_comes_back_as_a_new_life_and_is_merged_again() -> None:
    region = [Fault(at_s=300.0, first_chip=1, num_chips=1, down_s=100.0)]
    specs = riders((1.0, 1.0, 1.0))
    job = ElasticJob(
        first_chip=1, chips=1, faults=region, costs=ElasticCosts(slice_chips=1, scale_down_s=0, scale_up_s=0)
    )
    specs[1] = replace(specs[1], job=job)
    fleet = ride(specs, liveness_s=10.0)
    rider = fleet.riders["learner-1"]
    assert rider.lives == 2
    assert rider.core.steps == pytest.approx(300, abs=5)
    assert fleet.tally.goodput == pytest.approx(1 - 100 / 700 / 3, abs=0.003)
    assert fleet.tally.uptime == pytest.approx(1.0, abs=0.001)
    assert fleet.syncer.ledger.totals.lost > 0
    assert fleet.rounds == pytest.approx(700, abs=10)


def test_neither_broken_links_nor_a_dead_syncer_stop_a_learner() -> None:
    specs = [replace(spec, cuts=((200.0, 60.0),)) if i == 0 else spec for i, spec in enumerate(riders((1.0, 1.0)))]
    fleet = Fleet(
        ProtocolSetting(num_learners=2),
        specs,
        seed=0,
        horizon_s=600.0,
        outages=[(400.0, 50.0)],
        make_syncer=Watched().core,
    )
    fleet.run()
    assert fleet.tally.goodput == pytest.approx(1.0, abs=0.002)
    assert fleet.syncer.epoch == 2
    assert fleet.rounds == pytest.approx(550, abs=12)
    assert all(rider.core.linked for rider in fleet.riders.values())


@pytest.mark.parametrize(("extra", "for_share", "expected"), [(4, 0.25, 0.75), (12, 0.38 / 3, 0.62)])
def test_scavenging_shortens_the_way_to_a_number_of_tokens(extra: int, for_share: float, expected: float) -> None:
    """+100 % of compute during a quarter of the plain run's time, and +300 % during an eighth: section 13. What counts
    is what is merged, so the newcomers have to be let in at once and taken leave of without a loss."""

    def merged_after(specs: list[RiderSpec], tokens: int) -> float:
        fleet = Fleet(ProtocolSetting(num_learners=len(specs)), specs, seed=0, horizon_s=1e5)
        fleet.stop_at_tokens = tokens
        fleet.run()
        books = fleet.syncer.ledger.in_tokens()
        assert books["merged"] / books["consumed"] > 0.85
        return fleet.engine.now

    tokens = 4 * 1600
    plain_s = merged_after(riders([1.0] * 4), tokens)
    guests = [
        replace(
            spec,
            name=f"guest-{i:02d}",
            job=ElasticJob(
                first_chip=0, chips=1, faults=(), costs=ElasticCosts(slice_chips=1, scale_down_s=0, scale_up_s=0)
            ),
            joins_s=100.0,
            leaves_s=100.0 + for_share * plain_s,
        )
        for i, spec in enumerate(riders([1.0] * extra))
    ]
    assert merged_after([*riders([1.0] * 4), *guests], tokens) / plain_s == pytest.approx(expected, abs=0.02)


def test_chips_that_are_away_train_nothing() -> None:
    """A learner with half of its slices contributes half the tokens, and is weighed by them."""
    lost = [Fault(at_s=0.5, first_chip=0, num_chips=4, down_s=1e6)]
    costs = ElasticCosts(slice_chips=1, scale_down_s=0.0, scale_up_s=0.0)
    job = ElasticJob(first_chip=0, chips=8, faults=lost, costs=costs)
    fleet = ride([RiderSpec(name="a", job=job, pace=Pace(step_s=1.0))])
    assert fleet.tally.goodput == pytest.approx(0.5, abs=0.002)
    assert fleet.syncer.ledger.consumed == pytest.approx(4 * 700, abs=16)


def test_one_set_of_constants() -> None:
    assert Scenario(chips=1).hardware is FITTED
