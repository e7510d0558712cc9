"""``gruppetto fuzz``: what it prints, and what it leaves behind when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppetto.chaos import world as world_module
from gruppetto.chaos.wrong_restarts import ForgetsItsCursors
from gruppetto.cli.__main__ import main


def test_json_is_all_that_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["fuzz", "--seeds", "5", "--json", "--out", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["seeds"] == 5 and figures["failures"] == 0 and figures["events_per_s"] > 0


def test_one_seed_shows_its_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    assert main(["fuzz", "--seed", "5", "--trace", str(trace), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "seed 5:" in said and "calm" in said and "nothing is wrong" in said
    assert main(["replay", str(trace)]) == 0


def test_a_failure_leaves_a_small_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong core in place of the shipping one."""
    monkeypatch.setattr("gruppetto.chaos.fuzz.World", _with_a_wrong_core)
    assert main(["fuzz", "--seeds", "40", "--out", str(tmp_path), "--json"]) == 1
    said = capsys.readouterr()
    (found,) = json.loads(said.out)["found"]
    assert found["broken"] == "cursors-are-durable"
    assert f"once more: gruppetto fuzz --plan {found['plan']}" in said.err
    assert main(["fuzz", "--plan", found["plan"], "--out", str(tmp_path)]) == 1


def _with_a_wrong_core(plan: object, **rest: object) -> world_module.World:
    return world_module.World(plan, **{**rest, "make_syncer": ForgetsItsCursors})  # type: ignore[arg-type]


@pytest.mark.parametrize("flags", [["--seed", "1", "--plan", "x.json"], ["--trace", "t"], ["--plan", "missing.json"]])
def test_mistakes_are_one_line(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
