"""A plan is all there is: the same one gives the same history, in any process; a smaller one still tells the story."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gruppetto.chaos import Cores, FaultKind, Plan, draw_plan, live, read_plan, shrink, swarm, write_plan
from gruppetto.chaos.wrong_restarts import ForgetsItsCursors
from gruppetto.chaos.wrong_rounds import PublishesBeforeItPersists
from gruppetto.errors import DataError
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.replay import replay


def test_the_same_seed_gives_the_same_history_and_another_another() -> None:
    digests = [live(draw_plan(seed)).digest for seed in range(20)]
    assert digests == [live(draw_plan(seed)).digest for seed in range(20)]
    assert len(set(digests)) == len(digests)


def test_and_so_does_another_process() -> None:
    script = "from gruppetto.chaos import draw_plan, live; print(live(draw_plan(3)).digest)"
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": salt, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert said == {f"{live(draw_plan(3)).digest}\n"}


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    for seed in range(30):
        write_plan(draw_plan(seed), tmp_path / "plan.json")
        assert read_plan(tmp_path / "plan.json") == draw_plan(seed)


def test_what_is_no_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(DataError, match=r"plan\.json: cannot be read"):
        read_plan(path)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_plan(pipe)
    path.write_text('{"seed": 1}')
    with pytest.raises(DataError, match=r"is no plan of the fuzzer .*; name one that gruppetto fuzz has written"):
        read_plan(path)


def resumes(plan: Plan) -> bool:
    """It may restart from a checkpoint, which takes one fault more than a crash."""
    return any(fault.kind is FaultKind.RESUME_ALL for fault in plan.faults)


def test_a_failure_shrinks_to_what_it_needs() -> None:
    """Cursors are forgotten by a restart: one crash is all it takes, in a world of one learner."""
    cores = Cores(syncer=ForgetsItsCursors)
    found = next(o for o in swarm(range(100), cores) if o.broken and len(o.plan.faults) > 5 and not resumes(o.plan))
    small = shrink(found.plan, cores)
    assert small.outcome.broken == found.broken
    assert len(small.plan.faults) == 1 and len(small.plan.learners) == 1
    assert live(small.plan, cores) == small.outcome
    assert not live(small.plan).broken


def test_a_failure_without_a_fault_shrinks_to_no_fault() -> None:
    cores = Cores(syncer=PublishesBeforeItPersists)
    assert not shrink(draw_plan(0), cores).plan.faults


def test_what_does_not_fail_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(draw_plan(0))


def test_a_recorded_world_replays(tmp_path: Path) -> None:
    """Over all lives of the syncer."""
    seed = next(s for s in range(100) if any(f.kind == "crash-syncer" and not f.how for f in draw_plan(s).faults))
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, {}) as trace:
        live(draw_plan(seed), trace=trace)
    result = replay(path)
    assert result.identical and result.lives > 1, str(result.first_difference)
