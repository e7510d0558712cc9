"""What all systems of a race train, what goes wrong in it, and what is counted."""

from __future__ import annotations

import math
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from gruppetto.errors import RunFailed
from gruppetto.experiments.child import last_line
from gruppetto.experiments.experiment import Scale
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.peers import running
from gruppetto.experiments.peers.course import Course, Setting
from gruppetto.experiments.peers.crew import ALONE, OURS, Coordinator, Workers, coordinator_of
from gruppetto.experiments.peers.mishaps import MISHAPS, STORM, mishaps_of
from gruppetto.experiments.peers.question import RACES
from gruppetto.experiments.peers.race import PEERS, race
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import table

SETTING = Setting(
    workers=2,
    steps=3,
    sync_every=2,
    pace_s=0.0,
    batch=2,
    rate=1e-2,
    seed=5,
    dim=8,
    layers=2,
    heads=2,
    ffn_dim=16,
    context=8,
    spoilt=(1, 2),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    SETTING.write(tmp_path)
    letters = np.frombuffer(b"nobody is left behind, " * 200, np.uint8)
    np.save(tmp_path / "train.npy", letters)
    np.save(tmp_path / "held_out.npy", letters[:400])
    (tmp_path / "go").touch()
    return tmp_path


def test_a_worker_goes_on_where_it_was_killed_with_the_batches_that_it_would_have_had(place: Path) -> None:
    def windows_of(worker: int, most: int) -> list[torch.Tensor]:
        course = Course(place, worker)
        optimizer = course.adamw(course.model().parameters())
        found = []
        for windows in course.batches(optimizer):
            found.append(windows)
            if len(found) == most:
                break  # in the middle of this step: it does not count
        return found

    whole = windows_of(0, 99)
    assert len(whole) == SETTING.steps and whole[0].shape == (2, 8)
    begun, rest = windows_of(1, 2), windows_of(1, 99)
    assert len(rest) == 2 and torch.equal(begun[1], rest[0])
    assert not torch.equal(whole[0], begun[0]), "two workers have windows of their own"


def test_the_rate_and_the_end_follow_the_common_step(place: Path) -> None:
    course, at = Course(place, 0), iter([0, 2, 3])
    optimizer = course.adamw(course.model().parameters())
    rates = [optimizer.param_groups[0]["lr"] for _ in course.batches(optimizer, lambda: next(at))]
    assert rates == pytest.approx([1e-2, 1e-2 * (0.1 + 0.9 * (1 + math.cos(2 * math.pi / 3)) / 2)])


def test_who_is_spoilt_is_so_from_that_step_on_and_says_that_its_model_is_none(place: Path) -> None:
    course = Course(place, 1)
    net = course.model()
    optimizer = course.adamw(net.parameters())
    finite = []
    for windows in course.batches(optimizer):
        course.backward(net, windows)
        finite.append(all(bool(p.grad.isfinite().all()) for p in net.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    course.finish(net)
    workers = Workers(place, OURS, "python", {})
    assert finite == [True, True, False]
    assert workers.final(1)["loss"] is None and workers.final(0) is None  # type: ignore[index]
    assert len(workers.steps(1)) == 3 and workers.steps(0) == []


class Noted(Workers):
    """That says whom it was told to start and to signal."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def start(self, worker: int) -> None:
        self.told.append(("start", worker))

    def signal(self, worker: int, number: int) -> None:
        self.told.append((signal.Signals(number).name, worker))


@pytest.mark.parametrize("name", MISHAPS)
def test_mishaps_come_in_order_and_what_they_take_away_comes_back(name: str) -> None:
    workers, told = Noted(), []

    class NotedCoordinator(Coordinator):
        def start(self) -> None:
            told.append("start")

        def kill(self) -> None:
            told.append("kill")

    found = mishaps_of(name, 100, workers, NotedCoordinator())
    assert [m.at_step for m in found] == sorted(m.at_step for m in found)
    assert all(0 < m.at_step < 100 and m.later_s > 0 for m in found)
    for mishap in found:
        mishap.first()
        mishap.then()
    per_worker = [("SIGKILL", "start")] * len(STORM) if name == "storm" else [("SIGSTOP", "SIGCONT")]
    expected = [word for pair in per_worker for word in pair] if name in ("storm", "stopped") else []
    assert [word for word, _ in workers.told] == expected
    assert all(worker != 0 for _, worker in workers.told), "the first worker is never harmed"
    assert told == (["kill", "start"] if name == "coordinator" else [])


def test_without_the_other_systems_ours_runs_alone_and_a_race_with_them_says_what_is_missing(tmp_path: Path) -> None:
    scale = Scale(quick=True, cache=tmp_path)
    assert {arm.ride.peer for arm in RACES.arms(scale)} == {ALONE, OURS}
    with pytest.raises(RunFailed, match="torchft is not there: make an environment as"):
        race(Ride(system="race", peer="torchft"), tmp_path)
    python = tmp_path / "peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert {arm.ride.peer for arm in RACES.arms(scale)} == {ALONE, OURS, *PEERS}


def test_whoever_does_not_come_in_or_has_no_number_is_seen_in_the_table(tmp_path: Path) -> None:
    scale, store = Scale(quick=True, cache=tmp_path, seeds=1), Store(tmp_path / "peers.jsonl")
    _, calm, storm, *_ = RACES.arms(scale)
    nothing = dict.fromkeys(("loss", "wall_s", "step_p50_ms", "longest_s", "bytes"))
    store.add(calm.under(0), {**nothing, "came in": 0, "tokens": 0, "lines": 4}, took_s=0)
    full = {"loss": 2.5, "wall_s": 17.0, "step_p50_ms": 108.0, "longest_s": 0.2, "bytes": 9000.0}
    store.add(storm.under(0), {**full, "came in": 3, "tokens": 150_000, "lines": 4}, took_s=0)
    page = table(Findings(RACES, scale, store))
    assert "| no number in 1 of 1 seeds | 0 | 0.0 |" in page
    assert "| 17.0 | 2.500 | 150 | 3.0 | 108 | 0.20 | 9.0 | 4 | 1 |" in page


def test_a_coordinator_comes_back_under_the_address_that_it_had(tmp_path: Path) -> None:
    ours, lighthouse = (coordinator_of(peer, tmp_path, SETTING, "/x/bin/python") for peer in (OURS, "torchft"))
    assert "run.sync_period=2" in ours.command and "127.0.0.1:0" not in ours.command
    assert "syncer.shared_memory=false" in ours.command, "bytes that go past the loopback are not counted"
    assert lighthouse.command[0] == "/x/bin/torchft_lighthouse"
    assert lighthouse.environment["TORCHFT_LIGHTHOUSE"].removeprefix("http://") == lighthouse.command[-1]
    nobody = coordinator_of("hivemind", tmp_path, SETTING, "python")
    nobody.start()
    assert nobody.process is None and nobody.answers()
    assert not ours.answers()
    with socket.create_server(("127.0.0.1", ours.port)):
        assert ours.answers()


def test_whoever_crashes_has_failed_and_whoever_is_killed_or_done_has_not(place: Path) -> None:
    class Ended:
        def __init__(self, code: int | None) -> None:
            self.code = code

        def poll(self) -> int | None:
            return self.code

    workers = Workers(place, OURS, "python", {})
    codes = [None, 0, 1, -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT]
    workers._processes = {w: Ended(code) for w, code in enumerate(codes)}  # type: ignore[misc]
    assert workers.failed() == [2, 4, 5]


def test_what_is_judged_beside_others_is_loss_too_and_no_time_that_we_have_set(tmp_path: Path) -> None:
    python = tmp_path / "peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    scale = Scale(quick=True, cache=tmp_path)
    arms, orderings = {arm.name for arm in RACES.arms(scale)}, RACES.orderings(scale)
    assert all({o.less, o.more} <= arms for o in orderings)
    slow = [o.says for o in orderings if "slower" in o.says and "than with" in o.says]
    assert len(slow) == 1 and "torchft" in slow[0]
    for peer in PEERS:
        assert sum(f"{peer}'s loss" in o.says for o in orderings) == 4


def test_the_last_line_is_the_last_that_says_something() -> None:
    assert last_line("first\nOSError: the last\n\n  \n") == "OSError: the last"
    assert last_line("") == "it said nothing"


def test_who_is_not_ready_in_time_is_named_with_the_last_that_he_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "READY_WITHIN_S", -1.0)
    (tmp_path / "worker 2.log").write_text("first\nOSError: the last\n\n  \n")
    with pytest.raises(RunFailed, match=r"worker 2 is not ready after .* OSError: the last$"):
        running.until(lambda: False, tmp_path / "worker 2.log")
    with pytest.raises(RunFailed, match=r"it said nothing$"):
        running.until(lambda: False, tmp_path / "none.log")


@pytest.mark.live
def test_a_race_of_ours_with_one_of_nan(story: Path, cache: Path) -> None:
    asked = Ride(system="race", peer=OURS, mishap="spoilt", data=f"text:{story}", rounds=40, eval_windows=20)
    found = race(asked, cache)
    # The three that are well have moved on together, and the fourth ends with what they have.
    assert found["came in"] == 4 and found["failures"] == 0
    assert found["loss"] < 5.0 < math.log(256)
    # Of rounds that come late they are not told: some steps may be more than there are rounds.
    assert found["tokens"] > 40 * 3 * 256 * 0.5 and found["tokens"] % 256 == 0
    assert found["lines"] <= 4
    assert found["bytes"] is None or found["bytes"] > 35_000 * 6 / 24
