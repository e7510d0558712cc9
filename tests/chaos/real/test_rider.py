"""A rider is the shipping command line, and worse only while its lever says so."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gruppetto.chaos.real import rider
from gruppetto.chaos.real.detours import Detours
from gruppetto.chaos.real.levers import Lever, Places, read_lines
from gruppetto.chaos.real.machine import SmallDisk, is_alive, send
from gruppetto.numerics.codec import CODECS
from gruppetto.protocol.events import StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.runtime import transfers
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.heartbeat import Heartbeats


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(root=tmp_path / "chaos")
    made.make()
    return made


def levers(places: Places, lever: Lever, *, began_at: float = 0.0) -> rider._Levers:
    lever.write(places.lever("anna"))
    return rider._Levers(places.lever("anna"), began_at)


def test_it_runs_the_command_line_and_says_when_it_began(places: Places) -> None:
    before = wall_time_s()
    command = Detours(places, {"anna": 7}).command("anna", ["version", "--json"])
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    plain = subprocess.run(
        [sys.executable, "-m", "gruppetto", "version", "--json"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, plain.stdout, "")
    (life,) = read_lines(places.lives)
    assert life["who"] == "anna"
    assert before - 0.1 < life["at"] < wall_time_s()


def test_learners_are_led_by_way_of_their_proxies(places: Places) -> None:
    assert Detours(places, {"anna": 7}).syncer_for("anna", "state") == "http://127.0.0.1:7"


def test_each_heartbeat_is_told_with_its_answer(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((True, False))
    monkeypatch.setattr(Heartbeats, "beat", lambda self, heartbeat: next(answers))
    rider._tell_beats(rider._Diary(places.steps("anna")), 7)
    heart: Any = Heartbeats
    assert [heart.beat(None, None) for _ in range(2)] == [True, False]
    assert [(said["life"], said["beat"]) for said in read_lines(places.steps("anna"))] == [(7, True), (7, False)]


def test_contributions_are_bent_and_straight_again(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "encode_difference", transfers.encode_difference)
    monkeypatch.setattr(transfers, "encode_with_rest", transfers.encode_with_rest)
    lever = levers(places, Lever())
    rider._bend_offers(lever)
    base, theta = np.float32([3.0, 1.0]), np.float32([1.0, 2.0])

    def offered() -> list[float]:
        codec = CODECS["fp32"]
        return codec.decode(transfers.encode_difference(base, theta, codec), 2).tolist()

    assert offered() == [2.0, -1.0]
    for bent, wanted in ((Lever(factor=1000.0), [2000.0, -1000.0]), (Lever(nan=True), None), (Lever(), [2.0, -1.0])):
        bent.write(places.lever("anna"))
        os.utime(places.lever("anna"), ns=(0, hash(bent) & 0xFFFFFFFF))
        lever.look()
        found = offered()
        assert found == wanted if wanted is not None else all(map(math.isnan, found))
    assert (base.tolist(), theta.tolist()) == ([3.0, 1.0], [1.0, 2.0])
    Lever(factor=7.0).write(places.lever("anna"))
    lever.look()
    int4 = CODECS["int4"]
    payload = transfers.encode_with_rest(base, theta, None, int4, np.empty(2, np.float32))
    assert int4.decode(payload, 2).tolist() == [14.0, -8.0]


def test_the_wall_clock_jumps_only_in_lives_that_saw_it_jump(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", rider.true_time_s)  # put back afterwards
    rider._bend_clock(levers(places, Lever(clock_by_s=-3600.0, clock_at=50.0), began_at=10.0))
    assert wall_time_s() == pytest.approx(rider.true_time_s() - 3600.0, abs=5.0)
    rider._bend_clock(levers(places, Lever(clock_by_s=-3600.0, clock_at=50.0), began_at=60.0))
    assert wall_time_s() == pytest.approx(rider.true_time_s(), abs=5.0)


def test_every_step_is_told_as_it_is_made(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("step", "hello"):
        monkeypatch.setattr(LearnerCore, name, getattr(LearnerCore, name))
    rider._tell_steps(rider._Diary(places.steps("anna")), 7)
    core: Any = LearnerCore("anna", session="s", layout_hash="l")
    core.hello()
    core.hello()
    core.step(0.0, StepStarted())
    core.step(1.0, StepDone(tokens=1, cursor=1))
    hello, step = read_lines(places.steps("anna"))
    assert (hello["life"], hello["hello"]) == (7, True)
    assert (step["life"], step["clock"], step["seen"]) == (7, core.clock, core.newest_round)


def test_a_torn_line_is_passed_over(places: Places) -> None:
    places.lives.write_text('{"who": "anna"}\n[]\n{"who": "be', encoding="utf-8")
    assert list(read_lines(places.lives)) == [{"who": "anna"}]


def test_a_dead_process_gets_no_signal() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], stdin=subprocess.PIPE)
    assert send(child.pid, signal.SIGSTOP)
    assert is_alive(child.pid)
    assert send(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)  # dead, not yet buried
    assert not send(child.pid, signal.SIGKILL)
    child.communicate()
    assert not is_alive(child.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_small_disk_is_full_and_free_again_and_keeps_what_lies_on_it(tmp_path: Path) -> None:
    with SmallDisk.mounted(tmp_path / "state") as disk:
        (tmp_path / "state" / "kept").write_text("kept", encoding="utf-8")
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "state" / "more").write_bytes(bytes(1 << 16))
        disk.free()
        (tmp_path / "state" / "more").write_bytes(bytes(1 << 16))
    assert (tmp_path / "state" / "kept").read_text(encoding="utf-8") == "kept"
    assert not os.path.ismount(tmp_path / "state")
