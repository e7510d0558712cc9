"""Real processes on this machine, and what happens when they are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tests.live.waiting import until, until_round

from gruppetto.cli.__main__ import main
from gruppetto.trace.log import Record, read_trace

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TINY = [
    *("--set", "model.dim=32", "--set", "model.layers=2", "--set", "model.ffn_dim=64", "--set", "model.heads=2"),
    *("--set", "run.num_fragments=6", "--set", "run.sync_period=6"),
    *("--set", "train.eval_every_rounds=40", "--set", "train.eval_windows=16"),
    *("--set", "launch.restart=false"),  # with it: test_restarts.py
    *("--set", "run.liveness_s=60"),
]


class Train:
    """A ``gruppetto train`` of some learners, started but not waited for."""

    def __init__(self, directory: Path, names: str, rounds: int) -> None:
        self.directory = directory / "run"
        file = directory / "RUN.toml"
        file.write_text("\n".join(f'[[learner]]\nname = "{name}"\nslowdown = 4.0' for name in names), encoding="utf-8")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gruppetto", "train", str(file), *TINY),
                *("--rounds", str(rounds), "--out", str(self.directory), "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until_round(self, round: int) -> dict[str, Any]:
        return until_round(self.directory, round, self.process)

    def status(self) -> dict[str, Any]:
        """As a user asks for it."""
        command = [sys.executable, "-m", "gruppetto", "status", str(self.directory), "--json"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        status: dict[str, Any] = json.loads(shown.stdout)
        return status

    def pids(self) -> list[int]:
        processes = json.loads((self.directory / "processes.json").read_bytes())
        return [processes["syncer"]["pid"], *(each["pid"] for each in processes["learners"].values())]


@pytest.fixture
def train(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Train]:
    names, rounds = request.param
    running = Train(tmp_path, names, rounds)
    yield running
    if running.process.poll() is None:
        running.process.terminate()
        running.process.communicate()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("train", [("abc", 100)], ids=["100"], indirect=True)
def test_a_killed_learner_neither_stops_nor_delays_the_others(train: Train) -> None:
    seen = train.until_round(20)
    os.kill(seen["learners"]["b"]["pid"], signal.SIGKILL)
    out, errors = train.process.communicate()
    assert train.process.returncode == 0, errors
    report = json.loads(out)
    assert report["finished"]
    assert report["rounds"] == 100
    assert report["checks"] == {"replay": "ok", "ledger_balances": "ok", "ledger_agrees": "ok"}
    tokens = report["tokens"]
    assert tokens["consumed"] == tokens["merged"] + tokens["discarded"] + tokens["lost"]
    assert tokens["lost"] > 0
    assert "open" not in tokens
    assert report["learners"]["b"]["steps"] < 100
    processes = json.loads((train.directory / "processes.json").read_bytes())
    assert processes["learners"]["b"]["state"] == "killed (SIGKILL)"
    for name in ("a", "c"):
        assert report["learners"][name]["merged_rounds"] > 20
        assert processes["learners"][name]["state"] == "done"
    # Had anybody waited for the dead one, it would have been until its lease ran out, 60 s later.
    records = [line for line in read_trace(train.directory / "trace.jsonl") if isinstance(line, Record)]
    died = next(r.t for r in records if r.name == "LinkLost" and r.data["learner"] == "b")
    for name in ("a", "c"):
        steps = [r.t for r in records if r.name == "Progress" and r.data["learner"] == name and r.data["steps"]]
        gaps = [after - before for before, after in pairwise(steps) if after > died]
        assert len(gaps) > 10
        assert max(gaps) < 30.0
    assert report["eval"]["initial_loss"] > report["eval"]["loss"] > 0
    for name in (
        "report.json",
        "report.html",
        "run.toml",
        "corpus.json",
        "sample.txt",
        "model/config.json",
        "model/model.safetensors",
    ):
        assert (train.directory / name).exists(), name
    assert not (train.directory / "evaluation.jsonl").exists()
    assert not any(map(is_alive, train.pids()))
    # What the run has left in model/ can be taken from the state directory once more, to the bit.
    again = train.directory.parent / "again"
    assert main(["export", str(train.directory), "--out", str(again)]) == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (again / name).read_bytes() == (train.directory / "model" / name).read_bytes()


@pytest.mark.parametrize("train", [("ab", 5000)], ids=["5000"], indirect=True)
def test_a_dead_syncer_ends_the_run_in_one_line(train: Train) -> None:
    train.until_round(3)
    pids = train.pids()
    os.kill(pids[0], signal.SIGKILL)
    out, errors = train.process.communicate()
    assert train.process.returncode == 1
    assert out == ""
    assert "the syncer is killed (SIGKILL) at round" in errors.splitlines()[-1]
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize("train", [("ab", 5000)], ids=["5000"], indirect=True)
def test_a_stopped_run_leaves_no_process_and_can_be_reported(train: Train) -> None:
    train.until_round(3)
    status = train.status()
    assert set(status["learners"]) == {"a", "b"}
    exported = train.directory.parent / "now.safetensors"
    assert main(["export", str(train.directory), "--format", "safetensors", "--out", str(exported)]) == 0
    with safe_open(exported, "numpy") as opened:
        assert int(opened.metadata()["round"]) >= 3
        assert opened.get_slice("model.embed_tokens.weight").get_shape() == [256, 32]
    for learner in status["learners"].values():
        assert {"pid", "state", "clock", "last_merged_round"} <= learner.keys()
    pids = train.pids()
    train.process.send_signal(signal.SIGTERM)
    out, errors = train.process.communicate()
    assert train.process.returncode == 143
    assert out == ""
    assert "stopped by SIGTERM at round" in errors.splitlines()[-1]
    assert not any(map(is_alive, pids))
    reported = subprocess.run(
        [sys.executable, "-m", "gruppetto", "report", str(train.directory), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert reported.returncode == 0, reported.stderr
    report = json.loads(reported.stdout)
    assert not report["finished"]
    assert report["rounds"] >= 3


@pytest.mark.parametrize("train", [("ab", 5000)], ids=["5000"], indirect=True)
def test_nobody_outlives_a_parent_that_was_killed(train: Train) -> None:
    train.until_round(3)
    pids = train.pids()
    os.kill(pids[-1], signal.SIGSTOP)  # a machine that hangs outlives nobody either
    train.process.kill()
    train.process.communicate()
    until(lambda: not any(map(is_alive, pids)), lambda: [pid for pid in pids if is_alive(pid)])
