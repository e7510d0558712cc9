"""Faults are done to real processes, and undone however they end and whatever else goes wrong meanwhile."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gruppetto.chaos.real.faults import Hands
from gruppetto.chaos.real.kinds import KINDS, LINK_KINDS
from gruppetto.chaos.real.levers import Lever, Places
from gruppetto.chaos.real.link import CLEAR, Conditions
from gruppetto.chaos.real.plan import LiveFault, LivePlan
from gruppetto.config import load_run


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(root=tmp_path / "chaos")
    made.make()
    return made


@pytest.fixture
def hands(places: Places, tmp_path: Path) -> Hands:
    run = load_run(overrides={"run.num_learners": 2})
    return Hands(LivePlan(run=run), places, tmp_path / "syncer")


@pytest.fixture
def process(places: Places) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who calls itself learner-0."""
    child = subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=subprocess.PIPE)
    life = {"who": "learner-0", "pid": child.pid, "at": 1.0}
    places.lives.write_text(json.dumps(life) + "\n", encoding="utf-8")
    yield child
    child.kill()
    child.communicate()


def fault(kind: str, **more: object) -> LiveFault:
    return LiveFault(**{"at_s": 0, "who": "learner-0", "lasts_s": math.inf, **more}, kind=kind)  # type: ignore[arg-type]


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(bounded())


async def begin(hands: Hands, what: LiveFault) -> asyncio.Task[None]:
    task = asyncio.create_task(hands.do(what))
    await asyncio.sleep(0)
    return task


async def end(task: asyncio.Task[None]) -> None:
    """It is over already, or is cancelled; what it has raised by itself is raised here."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until_stopped(pid: int, stopped: bool) -> None:
    def is_stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"

    while is_stopped() != stopped:
        await asyncio.sleep(0.001)


def test_who_is_held_twice_goes_on_when_both_have_let_go(hands: Hands, process: subprocess.Popen[bytes]) -> None:
    async def scene() -> None:
        first, second = await begin(hands, fault("stop")), await begin(hands, fault("stop"))
        await until_stopped(process.pid, True)
        await end(first)
        slow = await begin(hands, fault("slow", share=0.5))
        await end(slow)
        await until_stopped(process.pid, True)
        await end(second)
        await until_stopped(process.pid, False)

    run(scene)


def test_a_kill_needs_somebody_alive(hands: Hands, process: subprocess.Popen[bytes]) -> None:
    async def scene() -> None:
        kill = LiveFault(at_s=0, kind="kill", who="learner-0")
        assert await hands.can(kill)
        assert not await hands.can(LiveFault(at_s=0, kind="kill", who="learner-1"))
        await hands.do(kill)
        assert process.wait() == -9
        assert not await hands.can(kill)

    run(scene)


def test_a_takeover_hits_who_is_in_charge_and_waits_for_a_standby(
    places: Places, tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gruppetto.chaos.real.faults.STANDBY_PATIENCE_S", 0.05)
    run_with_standby = load_run(overrides={"run.num_learners": 2, "launch.standby": True})
    hands = Hands(LivePlan(run=run_with_standby), places, tmp_path / "syncer")
    lives = [{"who": "syncer", "pid": pid, "at": 1.0} for pid in (process.pid, 1)]
    places.lives.write_text("".join(json.dumps(life) + "\n" for life in lives), encoding="utf-8")
    (tmp_path / "syncer").mkdir()
    endpoint = {"url": "http://127.0.0.1:7171", "pid": process.pid}
    (tmp_path / "syncer" / "endpoint.json").write_text(json.dumps(endpoint), encoding="utf-8")

    async def scene() -> None:
        takeover = LiveFault(at_s=0, kind="takeover", who="syncer")
        assert not await hands.can(takeover), "nobody waits"
        asyncio.get_running_loop().call_soon(setattr, hands, "standby_waits", True)
        assert await hands.can(takeover)
        await hands.do(takeover)
        assert process.wait() == -9
        assert not await hands.can(takeover), "nobody has said since that somebody waits"

    run(scene)


def test_levers_stand_as_all_active_faults_together_say(hands: Hands, places: Places) -> None:
    lever = places.lever("learner-0")

    async def scene() -> None:
        first, second = await begin(hands, fault("nan")), await begin(hands, fault("nan"))
        large = await begin(hands, fault("scale", factor=10.0))
        larger = await begin(hands, fault("scale", factor=-3.0))
        clock = await begin(hands, fault("clock", by_s=-60.0))
        await end(first)
        now = Lever.read(lever)
        assert (now.nan, now.factor, now.clock_by_s, now.clock_at > 0) == (True, -30.0, -60.0, True)
        assert not places.lever("learner-1").exists()
        for task in (second, large, larger, clock):
            await end(task)
        now = Lever.read(lever)
        assert (now.nan, now.factor, now.clock_by_s) == (False, 1.0, 0.0)

    run(scene)


@pytest.mark.parametrize("who", ["learner-0", "syncer"])
def test_links_are_bad_while_a_fault_lasts_and_well_afterwards(hands: Hands, who: str) -> None:
    async def scene() -> None:
        assert sorted(hands.start()) == ["learner-0", "learner-1"]
        mine, other = (hands._proxies[name] for name in ("learner-0", "learner-1"))
        slow = await begin(hands, fault("latency", who=who, delay_s=0.5, way="up"))
        held = await begin(hands, fault("partition", who=who))
        gone = await begin(hands, fault("cut", who=who, lasts_s=1000.0))
        assert mine.up.conditions == Conditions(delay_s=0.5, held=True)
        assert mine.down.conditions == Conditions(held=True)
        assert mine.refusing
        assert (other.up.conditions == mine.up.conditions) == (who == "syncer")
        for task in (held, gone):
            await end(task)
        assert (mine.up.conditions, mine.refusing) == (Conditions(delay_s=0.5), False)
        await end(slow)
        assert mine.up.conditions == mine.down.conditions == other.up.conditions == CLEAR
        await hands.stop()

    run(scene)


def test_every_kind_can_be_done_to_whom_it_hits(hands: Hands, process: subprocess.Popen[bytes]) -> None:
    """All but those that need more than a process and a link, which have tests of their own."""

    async def scene() -> None:
        hands.start()
        for name in sorted(KINDS.keys() - {"disk-full", "takeover", "kill"}):
            lasts_s = math.inf if KINDS[name].can_last else None
            await end(await begin(hands, fault(name, lasts_s=lasts_s)))
            if name in LINK_KINDS:
                await end(await begin(hands, fault(name, lasts_s=lasts_s, who="syncer")))
            assert not any(hands._active.values()), name
        process.kill()
        process.wait()
        await hands.stop()

    run(scene)


def test_the_syncer_is_where_it_says(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "syncer").mkdir()
    for said, found in (
        ('{"url": "http://127.0.0.1:7171", "pid": 7}', ("127.0.0.1", 7171)),
        ('{"url": "nonsense://", "pid": 7}', None),
        ('{"url', None),
        ("{}", None),
    ):
        (tmp_path / "syncer" / "endpoint.json").write_text(said, encoding="utf-8")
        assert hands._upstream() == found
