"""Learners of several ranks: real processes, real collectives, a real syncer."""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
import runpy
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.waiting import PATIENCE_S, until

import gruppetto.data
from gruppetto.attach.part import load_part
from gruppetto.attach.view import Place
from gruppetto.launch.ask import fetch_status, find_endpoint
from gruppetto.launch.ask_checkpoint import take_checkpoint
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting

pytestmark = pytest.mark.live
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fsdp2.py"
SCRIPT = Path(__file__).with_name("one_rank.py")


class Group:
    """The processes of one learner."""

    def __init__(self, place: Path, url: str, name: str, kind: str, size: int, how: dict[str, Any]) -> None:
        self.name, self.size, self.out = name, size, place
        self.out.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.live.ready"])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = {"url": url, "name": name, "kind": kind, "size": size, "out": str(place), "lockstep": True, **how}
        told["rendezvous"] = f"tcp://127.0.0.1:{port}"
        self.processes: list[BaseProcess] = []
        for rank in range(size):
            given = {"told": {**told, "rank": rank}}
            process = context.Process(
                target=runpy.run_path, args=(str(SCRIPT),), kwargs={"init_globals": given, "run_name": "one_rank"}
            )
            process.start()
            self.processes.append(process)

    def ended(self) -> list[int | None]:
        for process in self.processes:
            process.join(PATIENCE_S)
        return [process.exitcode for process in self.processes]

    def lines(self, rank: int = 0) -> list[Any]:
        """(round, learning-rate factor, digest of all weights) after every step."""
        path = self.out / f"{self.name}-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def weights(self, rank: int = 0) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = torch.load(self.out / f"{self.name}-{rank}.pt")
        return found


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts syncers in threads, with these settings of the protocol or their own; gives the address."""
    ends: list[Callable[[], None]] = []

    def start(**settings: Any) -> str:
        own = {key: settings.pop(key) for key in list(settings) if key in SyncerSetting.__dataclass_fields__}
        setting = SyncerSetting(state=tmp_path / f"state-{len(ends)}", listen="127.0.0.1:0", **own)
        ready: Future[str] = Future()

        async def main() -> None:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()
            ends.append(lambda: (loop.call_soon_threadsafe(stop.set), thread.join())[1])
            await serve(ProtocolSetting(**settings), setting, on_ready=lambda at: ready.set_result(at.url), stop=stop)

        thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        thread.start()
        return ready.result(PATIENCE_S)

    yield start
    for end in ends:
        end()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """Starts learners of some ranks; what is left of them ends with the test."""
    started: list[Group] = []

    def start(url: str, name: str, kind: str, size: int, place: str = "", **how: Any) -> Group:
        started.append(Group(tmp_path / (place or name), url, name, kind, size, how))
        return started[-1]

    yield start
    for one in started:
        for process in one.processes:
            process.kill()
            process.join()


TOGETHER = {"num_learners": 4, "start_learners": 4, "min_quorum": 4, "num_fragments": 4, "sync_period": 4}
EXACT = {"uplink": "fp32", "norm_gate": "off"}


def test_blocks_are_those_of_a_piece_and_what_they_leave_is_owed(
    syncer: Callable[..., str], group: Callable[..., Group]
) -> None:
    """Two ranks and one, each alone in a run of its own: int4 moves both as far as float32 does, on the whole."""
    alone = {"rounds": 40, "num_fragments": 4, "sync_period": 4, "norm_gate": "off"}
    ways = {"fp32": ("fsdp", 2), "int4": ("fsdp", 2), "int4-plain": ("plain", 1)}
    ends = {}
    for way, kind in ways.items():
        rider = group(syncer(uplink=way.partition("-")[0], **alone), "a", *kind, place=way)
        assert rider.ended() == [0] * kind[1]
        assert all(rider.lines(rank) == rider.lines() for rank in range(rider.size))
        ends[way] = torch.cat([values.flatten() for values in rider.weights().values()])
    far = {way: float((end - ends["fp32"]).norm() / ends["fp32"].norm()) for way, end in ends.items()}
    assert 0 < far["int4"] < 0.15 and far["int4"] < 2 * far["int4-plain"], far


def test_learners_of_many_ranks_train_what_plain_ones_train(
    syncer: Callable[..., str], group: Callable[..., Group]
) -> None:
    """Round by round in step: three of two ranks and a plain one, and four plain ones."""
    ends = []
    for kinds in ([("fsdp", 2), ("fsdp", 2), ("tp", 2), ("plain", 1)], [("plain", 1)] * 4):
        url = syncer(rounds=6, **TOGETHER, **EXACT)
        riders = [group(url, name, *kind, place=f"{len(ends)}{name}") for name, kind in zip("abcd", kinds, strict=True)]
        assert [rider.ended() for rider in riders] == [[0] * size for _, size in kinds]
        for rider in riders:
            assert [line[0] for line in rider.lines()] == list(range(1, 7))
            for rank in range(rider.size):
                assert rider.lines(rank) == rider.lines(), "all ranks hold the same bits after every step"
                torch.testing.assert_close(rider.weights(rank), riders[0].weights(), rtol=0, atol=0)
        ends.append(riders[0].weights())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)


def test_a_learner_goes_on_with_another_number_of_ranks(
    syncer: Callable[..., str], group: Callable[..., Group], tmp_path: Path
) -> None:
    alone = {"num_fragments": 1, "sync_period": 1, **EXACT}
    url, ends = syncer(rounds=9, **alone), []
    for stop_at, size, own in ((3, 2, True), (6, 1, False), (9, 3, False)):
        save, load = str(tmp_path / f"at-{stop_at}"), str(tmp_path / f"at-{stop_at - 3}") if stop_at > 3 else ""
        rider = group(url, "a", "fsdp", size, place=str(size), stop_at=stop_at, save=save, load=load, own=own)
        assert rider.ended() == [0] * size
        ends.append(rider.weights())
    late = group(url, "late", "fsdp", 2)  # the run is over
    assert late.ended() == [0, 0] and [late.lines(rank) for rank in range(2)] == [[], []]
    for rank in range(2):
        torch.testing.assert_close(late.weights(rank), ends[-1], rtol=0, atol=0)
    whole = group(syncer(rounds=9, **alone), "a", "plain", 1)
    assert whole.ended() == [0]
    torch.testing.assert_close(ends[-1], whole.weights(), rtol=1e-4, atol=1e-5)


def test_the_example_the_reference_trainer_and_a_vain_wait(
    syncer: Callable[..., str], group: Callable[..., Group]
) -> None:
    url = syncer(rounds=12, num_fragments=4, sync_period=4)
    riders = [group(url, "example", str(EXAMPLE), 2), *(group("", f"reference-{n}", "", n) for n in (1, 2))]
    assert [rider.ended() for rider in riders] == [[0, 0], [0], [0, 0]]
    assert fetch_status(url)["round"] == 12
    alone, both = riders[1:]
    deserted = group("", "meeting", "", 2)
    assert deserted.ended() == [3, 0]
    assert "another rank of this learner has gone" in (deserted.out / "meeting-0.failed").read_text()
    deserted = group(syncer(rounds=100_000, num_fragments=4, sync_period=4), "deserter", "", 2, lockstep=False)
    assert deserted.ended() == [3, 3]
    for rank in range(2):
        assert "rank 1 of this learner has left its loop" in (deserted.out / f"deserter-{rank}.failed").read_text()
    torch.testing.assert_close(both.weights(0), both.weights(1), rtol=0, atol=0)
    torch.testing.assert_close(both.weights(), alone.weights(), rtol=1e-3, atol=1e-4)


def test_what_accelerate_saves_has_the_learner_of_many_ranks(
    syncer: Callable[..., str], group: Callable[..., Group]
) -> None:
    url = syncer(rounds=1000, num_fragments=4, sync_period=4)
    rider = group(url, "accelerated", "", 2)
    assert rider.ended() == [0, 0]
    for rank in range(2):
        (found,) = rider.lines(rank)
        fresh, loaded = found["counters"]
        assert found["kinds"] == ["DTensor"]
        assert (fresh["clock"], loaded["clock"]) == (0, 4) and all(version >= 0 for version, *_ in loaded["fragments"])
    assert fetch_status(url)["learners"]["x"]["incarnation"] == 2


class _At:
    """A learner that stands somewhere in the data."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def took(self, cursor: int, *, incarnation: int) -> None:
        pass


def test_a_state_goes_from_rank_to_rank_however_many_there_are(
    syncer: Callable[..., str], group: Callable[..., Group]
) -> None:
    """From two replicas to one, to columns of two of which one fails at its first donor, to rows of three."""
    url = syncer(rounds=100_000, num_fragments=3, sync_period=3, num_learners=3)
    riding: list[Group] = []

    def joins(name: str, kind: str, size: int, *donors: str, leaving: int = 0, **how: Any) -> None:
        for one in riding[:leaving]:
            os.kill(one.processes[-1].pid or 0, signal.SIGTERM)
            assert one.ended() == [0] * one.size
        del riding[:leaving]
        riding.append(group(url, name, kind, size, **how))
        until(lambda: all(len(riding[-1].lines(rank)) > 2 for rank in range(size)))
        for rank in range(size if donors else 0):
            began = torch.load(riding[-1].out / f"{name}-{rank}.began", weights_only=True)
            assert rank or began["from"] in [f"peer {donor}" for donor in donors], began["from"]
            assert not rank or began["visits"] == len(donors), "all ranks go on to the next donor together"
            assert {line[1] for line in riding[-1].lines(rank)} == {1.0}, "no ramp: the moments are a peer's"
            assert began["moments"].keys() == signs.keys() and began["alike"] == {True}
            for key, values in signs.items():
                assert torch.equal(began["moments"][key], values), (name, rank, key)
                assert torch.equal(began["bases"][f"base.{key}"], weights[key]), "nobody has learnt anything"
            assert torch.equal(began["told"], torch.full((3,), 7.0)), "buffers come along"

    tools = runpy.run_path(str(SCRIPT))
    model = tools["made"]({"rank": 0, "size": 1, "kind": "plain"})
    signs, weights = tools["signs"](model), {name: p.detach() for name, p in model.named_parameters()}
    joins("heir-a", "ddp", 2, signs=True)
    joins("heir-b", "plain", 1, "heir-a")
    joins("heir-c", "tp", 2, "heir-a", "heir-b", fails=True)
    joins("heir-d", "fsdp", 3, "heir-c", leaving=2)
    for one, share in ((riding[0], 1), (riding[1], 3)):
        by_rank = [one.lines(rank) for rank in range(one.size)]
        (slot,) = {line[3][1] for line in by_rank[0]}
        steps = list(zip(*by_rank, strict=False))
        assert all(line[3] == together[0][3] for together in steps for line in together), "one cursor for all"
        if share == 1:
            assert all(line[2] == together[0][2] for together in steps for line in together), "columns: the same items"
        begins = steps[0][0][3][2] - 3 * share
        rows = [row for together in steps for row in zip(*(line[2] for line in together[:share]), strict=True)]
        in_turn = gruppetto.data.slots(range(10_000)).of(_At(Place(1, slot, begins)))
        assert [item for row in rows for item in row] == list(itertools.islice(in_turn, 3 * share * len(steps)))


def test_a_dead_rank_is_a_dead_learner_which_comes_back(
    syncer: Callable[..., str], group: Callable[..., Group], tmp_path: Path
) -> None:
    """From what two ranks have saved, as three; it has a part in a checkpoint of the run, and leaves on notice."""
    url = syncer(rounds=100_000, num_learners=2, num_fragments=4, sync_period=4, liveness_s=2.0)
    group(url, "b", "plain", 1, lockstep=False, parts=str(tmp_path / "parts-b"))
    until(lambda: fetch_status(url)["round"] > 5)
    kept, parts = tmp_path / "kept", tmp_path / "parts-a"
    first = group(url, "a", "fsdp", 2, place="first", lockstep=False, keeps=str(kept), cannot="begin")
    until(lambda: len(first.lines()) > 5 and any(kept.glob("round-*[0-9]")))
    assert first.lines()[0][1] < 1, "what one rank cannot begin from none does: a fresh optimizer, at a lower rate"
    os.kill(first.processes[1].pid or 0, signal.SIGKILL)
    assert first.ended() == [3, -signal.SIGKILL], "the other rank ends too"
    before = fetch_status(url)["round"]
    until(lambda: fetch_status(url)["round"] > before + 3)  # nobody waits for it
    how = {"lockstep": False, "keeps": str(kept), "parts": str(parts), "cannot": "fetch"}
    second = group(url, "a", "fsdp", 3, place="second", **how)
    until(lambda: len(second.lines()) > 8)
    a = fetch_status(url)["learners"]["a"]
    assert (a["state"], a["incarnation"]) == ("live", 2)
    sources = [note["source"] for note in fetch_status(url)["recoveries"] if note["learner"] == "a"]
    assert sources == ["syncer", "checkpoint"]
    assert {line[1] for line in second.lines()} == {1.0}, "with the optimizer's state of its own checkpoint"
    shared = min(len(second.lines(rank)) for rank in range(3))
    assert second.lines(0)[:shared] == second.lines(1)[:shared] == second.lines(2)[:shared]
    endpoint = find_endpoint(tmp_path / "state-0")
    assert endpoint is not None
    report = take_checkpoint(url, secret=endpoint.control, name="cut")
    assert (report["stage"], report["left_out"]) == ("done", {}), report
    os.kill(second.processes[1].pid or 0, signal.SIGTERM)
    assert second.ended() == [0, 0, 0]
    a = fetch_status(url)["learners"]["a"]
    assert a["state"] == "left"
    assert second.lines(0) == second.lines(1) == second.lines(2), "at the same step"
    model = runpy.run_path(str(SCRIPT))["Net"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    alone = gruppetto.Learner(model, optimizer, syncer=url, name="a")
    extra = load_part(parts / "cut", model, optimizer, alone)
    assert extra["who"] == "a" and torch.equal(extra["draw"], torch.ones(3))
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert len(moments) == 6 and all(bool(moment.any()) for moment in moments)
