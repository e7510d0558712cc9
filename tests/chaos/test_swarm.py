"""Many worlds, everything that has ever failed, and every small world: nothing is wrong in any of them."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from gruppetto.chaos import Outcome, draw_plan, live, read_plan
from gruppetto.chaos.exhaust import small_worlds
from gruppetto.chaos.plan import CRASH_POINTS, DAMAGES, FaultKind
from gruppetto.chaos.world import World
from gruppetto.protocol.donors import Source
from gruppetto.protocol.messages import RejectionReason

HERE = Path(__file__).parent
SEEDS = [int(line) for line in (HERE / "seeds.txt").read_text().splitlines() if line and not line.startswith("#")]
PLANS = sorted((HERE / "plans").glob("*.json"))


def fine(outcome: Outcome) -> bool:
    assert not outcome.broken, f"{outcome.what}\n{outcome.plan}\ngruppetto fuzz --seed {outcome.plan.seed}"
    return True


@pytest.mark.parametrize("block", range(6))
def test_nothing_is_wrong(block: int) -> None:
    assert all(fine(live(draw_plan(seed))) for seed in range(50 * block, 50 * (block + 1)))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_has_failed_once_never_fails_again(seed: int) -> None:
    assert fine(live(draw_plan(seed)))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_nor_does_its_smallest_form(path: Path) -> None:
    assert fine(live(read_plan(path)))


def test_every_pair_of_faults_in_the_smallest_world() -> None:
    assert sum(fine(live(plan)) for plan in small_worlds(depth=2)) > 800


def test_the_swarm_gets_everywhere() -> None:
    """A fuzzer that never reaches a state says nothing about it."""
    rejected: collections.Counter[str] = collections.Counter()
    crashes: set[str] = set()
    kinds: set[FaultKind] = set()
    hows: set[tuple[FaultKind, str]] = set()
    finished = restarts = losses = damages = intervals = 0
    for seed in range(300, 500):
        plan = draw_plan(seed)
        world = World(plan)
        crash = world.fate.crash

        def count(fault: object, crash: object = crash, world: World = world) -> None:
            if world.syncer is not None:
                crashes.add(fault.how)  # type: ignore[attr-defined]
            crash(fault)  # type: ignore[operator]

        world.fate.crash = count  # type: ignore[method-assign]
        world.run()
        commit, syncer = world.disk.commit, world.syncer
        assert commit is not None and syncer is not None
        rejected += collections.Counter(syncer.core.rejected)
        kinds |= {fault.kind for fault in plan.faults}
        hows |= {(fault.kind, fault.how) for fault in plan.faults if fault.kind.value in DAMAGES}
        losses += any(life.legacy.unseen > 0 for life in world.watch.lives)
        damages += any(life.legacy.damaged for life in world.watch.lives)
        intervals += plan.setting.reserve > 0
        restarts += world.disk.epoch > 1
        finished += commit.state.round == plan.setting.rounds
    # The learners are honest, so what can only be a lie is not said here; tests/protocol/test_fuzz.py says it.
    lies = {
        RejectionReason.LAYOUT,
        RejectionReason.MALFORMED,
        RejectionReason.NO_WORK,
        RejectionReason.NOT_ASKED,
        RejectionReason.IMPLAUSIBLE_COUNTS,
    }
    assert set(rejected) == {reason.value for reason in RejectionReason} - {lie.value for lie in lies}
    assert crashes == set(CRASH_POINTS)
    assert kinds == set(FaultKind)
    assert finished > 10 and restarts > 20
    assert losses > 20 and damages > 5 and intervals > 20
    assert hows == {(FaultKind(kind), how) for kind, hows_of in DAMAGES.items() for how in hows_of}


def test_newcomers_climb_every_rung() -> None:
    """A peer, another one after the first had failed or was busy, the own checkpoint, the syncer."""
    sources: collections.Counter[Source] = collections.Counter()
    second_choice = busy = 0
    for seed in range(300, 450):
        world = World(draw_plan(seed))
        world.run()
        for process in world.processes:
            search = process.search
            if search is not None and search.source is not None:
                sources[search.source] += 1
                second_choice += search.source is Source.PEER and len(set(search.tried)) > 1
                busy += len(search.tried) > len(set(search.tried))
    assert set(sources) == set(Source) and sources[Source.PEER] > 30
    assert second_choice > 0 and busy > 0
