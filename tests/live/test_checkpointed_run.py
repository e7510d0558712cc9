"""A real run: checkpointed in the middle, everything killed, resumed to its end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tests.live.waiting import until_round

from gruppetto.cli.__main__ import main
from gruppetto.trace.log import Header, Record, read_trace

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROUNDS = 60
SETTINGS = [
    *("--set", "model.dim=32", "--set", "model.layers=2", "--set", "model.ffn_dim=64", "--set", "model.heads=2"),
    *("--set", "run.num_fragments=6", "--set", "run.sync_period=6"),
    *("--set", "train.eval_every_rounds=30", "--set", "train.eval_windows=32", "--rounds", str(ROUNDS)),
]
NAMES = ("a", "b", "c")
LEARNERS = "\n".join(
    f'[[learner]]\nname = "{name}"\nslowdown = {pace}' for name, pace in zip(NAMES, (8, 9, 8), strict=True)
)


def gruppetto(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gruppetto", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str], code: int = 0) -> str:
    out, errors = process.communicate()
    assert process.returncode == code, errors
    return out


def kill_all(run: Path, train: subprocess.Popen[str]) -> None:
    """kill −9 of the parent, the syncer and every learner."""
    processes = json.loads((run / "processes.json").read_bytes())
    pids = [train.pid, processes["syncer"]["pid"], *(each["pid"] for each in processes["learners"].values())]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    train.communicate()


def merged_batches(records: list[Record]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """The (first, last + 1) windows of the data in each merged contribution, by learner and fragment."""
    answers: dict[tuple[int, int, str], Record] = {}
    merged: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        if record.name not in ("Answer", "Fold"):
            continue
        key = (record.data["round"], record.data["fragment"], record.data["learner"])
        if record.name == "Answer":
            answers[key] = record
        else:
            answer = answers[key].data
            windows = answer["steps"] * 8
            merged[answer["learner"], answer["fragment"]].append((answer["cursor"] - windows, answer["cursor"]))
    return merged


def test_a_run_goes_on_from_its_checkpoint_after_everything_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, run = tmp_path / "RUN.toml", tmp_path / "run"
    file.write_text(LEARNERS, encoding="utf-8")
    whole = json.loads(said(gruppetto("train", str(file), *SETTINGS, "--out", str(tmp_path / "whole"), "--json")))

    train = gruppetto("train", str(file), *SETTINGS, "--out", str(run), "--json")
    until_round(run, 5, train)
    capsys.readouterr()
    # At once: a process would have to start first, and rounds go on.
    assert main(["checkpoint", str(run), "--name", "half", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["learners"]) == set(NAMES) and report["left_out"] == {}
    assert report["path"] == str(run / "syncer" / "checkpoints" / "half")
    until_round(run, report["round"] + 6, train)
    kill_all(run, train)

    known, there = (run / "corpus.json").read_bytes(), sorted(run.rglob("*"))
    (run / "corpus.json").write_bytes(known.replace(b'"sha256": "', b'"sha256": "not '))
    assert main(["resume", str(run)]) == 2
    assert "python-stdlib: is not what the run was begun on" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == there
    (run / "corpus.json").write_bytes(known)

    resumed = json.loads(said(gruppetto("resume", str(run), "--json")))
    assert resumed["finished"] and resumed["rounds"] == ROUNDS
    assert resumed["checks"] == {"replay": "ok", "ledger_balances": "ok", "ledger_agrees": "ok"}
    tokens = resumed["tokens"]
    assert tokens["consumed"] == tokens["merged"] + tokens["discarded"] + tokens["lost"]
    assert tokens["lost"] == 0  # though everything was killed
    assert resumed["eval"]["loss"] == pytest.approx(whole["eval"]["loss"], rel=0.1)

    lines = list(read_trace(run / "trace.jsonl"))
    (_, *_, begins) = [line.line for line in lines if isinstance(line, Header) and "setting" in line.data]
    records = [line for line in lines if isinstance(line, Record)]
    came = [r.data for r in records if r.name == "MemberChanged" and r.line > begins]
    arrivals = {r["learner"]: r["why"] for r in came if r["why"] in ("new", "returned", "reborn")}
    assert arrivals == dict.fromkeys(NAMES, "returned")
    rounds = [r.data["round"] for r in records if r.name == "RoundClosed"]
    assert rounds == list(range(1, ROUNDS + 1))  # as if uninterrupted: what came after the cut is in another file
    assert (run / "trace-before-resume-1.jsonl").exists()
    for (name, fragment), spans in merged_batches(records).items():
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end, f"{name} merged windows from {start} twice into fragment {fragment}"

    assert f"the run is finished, at round {ROUNDS}: nothing is left to be resumed" in said(
        gruppetto("resume", str(run))
    )


def test_without_a_checkpoint_it_goes_on_from_the_durable_state(tmp_path: Path) -> None:
    file, run, out = tmp_path / "RUN.toml", tmp_path / "run", tmp_path / "further"
    file.write_text(LEARNERS, encoding="utf-8")
    train = gruppetto("train", str(file), *SETTINGS, "--out", str(run), "--json")
    until_round(run, 15, train)
    kill_all(run, train)
    resumed = gruppetto("resume", str(run), "--out", str(out), "--json")
    figures = json.loads(said(resumed))
    assert figures["finished"] and figures["rounds"] == ROUNDS
    assert figures["tokens"]["lost"] > 0  # what the killed learners had not given away
    assert figures["checks"]["ledger_balances"] == "ok"
    assert not (run / "report.json").exists()  # the old run is as it was
