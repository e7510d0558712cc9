"""One tape, three worlds: what the simulator recorded makes the runtime decide the same, and the other way round."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.units import Epoch
from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.driver import Driver
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World
from gruppetto.sim.world import LAYOUT_HASH
from gruppetto.trace.log import Record, TraceWriter, read_trace
from gruppetto.trace.replay import replay
from gruppetto.trace.schema import core_header, value_of

SETTING = ProtocolSetting(num_learners=4, num_fragments=6, sync_period=6, rounds=40)


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    """The trace of a simulated run with unequal learners, a late joiner and a death."""
    path = tmp_path / "simulated.jsonl"
    link = Link(latency_s=0.02)
    specs = [
        LearnerSpec(name="a", pace=Pace(step_s=1.0, jitter=0.1), link=link),
        LearnerSpec(name="b", pace=Pace(step_s=1.2, jitter=0.1), link=link, dies_at=15.0),
        LearnerSpec(name="c", pace=Pace(step_s=3.0, jitter=0.1), link=link),
        LearnerSpec(name="d", pace=Pace(step_s=1.0, jitter=0.1), link=link, joins_at=9.0),
    ]
    header = core_header(SETTING, run_id="world", layout_hash=LAYOUT_HASH, epoch=Epoch(1))
    with TraceWriter(path, header) as trace:
        World(SETTING, specs, seed=5, costs=SyncerCosts(merge_s=0.05), trace=trace).run(until=200.0)
    return path


def of_syncer(path: Path, kind: str) -> list[tuple[float, str, Any]]:
    records = [r for r in read_trace(path) if isinstance(r, Record) and r.who == "syncer" and r.kind == kind]
    return [(r.t, r.name, r.data) for r in records]


def through_the_runtime(tape: Path, out: Path) -> None:
    """Feed the recorded events to a core under the driver of the real service, at the recorded times."""
    clock = ManualClock()
    with TraceWriter(out, core_header(SETTING, run_id="world", layout_hash=LAYOUT_HASH, epoch=Epoch(1))) as trace:
        core = SyncerCore(SETTING, run_id="world", layout_hash=LAYOUT_HASH)
        driver: Driver[SyncerEvent, Any] = Driver(
            core, who="syncer", clock=clock, trace=trace, perform=lambda action: None
        )
        for t, name, data in of_syncer(tape, "in"):
            clock._now = t  # exactly, not by adding up differences
            driver.feed(value_of(name, data))


def through_the_simulator(tape: Path, out: Path) -> None:
    """Feed the recorded events to the syncer of a world without learners, at the recorded times."""
    with TraceWriter(out, core_header(SETTING, run_id="world", layout_hash=LAYOUT_HASH, epoch=Epoch(1))) as trace:
        world = World(SETTING, [], seed=0, trace=trace)
        world._perform = lambda action: None  # type: ignore[method-assign]
        world._plan_wake = lambda: None  # type: ignore[method-assign]
        for t, name, data in of_syncer(tape, "in"):
            world.engine.at(t, partial(world.tell_syncer, value_of(name, data)))
        world.run(until=1000.0)


def test_the_tape_covers_what_matters(simulated: Path) -> None:
    names = {name for _, name, _ in of_syncer(simulated, "in")}
    assert {"Hello", "Progress", "Answer", "Deferred", "Heartbeat", "LinkLost", "Seeded", "Tick"} <= names
    decisions = {name for _, name, _ in of_syncer(simulated, "out")}
    assert {"Send", "Fold", "Drop", "QuorumMet", "RoundClosed", "TakeOuterStep", "Persist", "Publish"} <= decisions
    assert of_syncer(simulated, "out")[-1][0] > 30.0


@pytest.mark.parametrize("world", [through_the_runtime, through_the_simulator])
def test_the_same_tape_leads_to_the_same_actions(simulated: Path, tmp_path: Path, world: Any) -> None:
    again = tmp_path / "again.jsonl"
    world(simulated, again)
    assert of_syncer(again, "in") == of_syncer(simulated, "in")
    assert of_syncer(again, "out") == of_syncer(simulated, "out")


def test_and_so_does_a_replay(simulated: Path) -> None:
    result = replay(simulated)
    assert result.identical, str(result.first_difference)
    assert result.events == len(of_syncer(simulated, "in"))
