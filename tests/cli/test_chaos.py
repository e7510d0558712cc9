"""The chaos verb: what it says before anything runs, and what it makes of a plan that this machine cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main

PLAN = """
[[fault]]
at_s = 2
kind = "takeover"

[[fault]]
at_s = 1
kind = "kill"
who = "anna"

[run]
rounds = 9

[[learner]]
name = "anna"
"""


NO_STANDBY = "the chaos verb starts no standby yet; experiments/syncer_kills.py does"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gruppetto.chaos.real.machine.standby_verb", lambda verb: None)
    return tmp_path / "PLAN.toml"


def test_a_dry_run_prints_the_plan_and_leaves_nothing(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(PLAN.partition("[[fault]]")[2].partition("[[fault]]")[2].join(["[[fault]]", ""]), encoding="utf-8")
    assert main(["chaos", str(plan), "--dry"]) == 0
    assert capsys.readouterr().out == "    1.0 s  kill anna\n"
    assert list(plan.parent.iterdir()) == [plan]


@pytest.mark.parametrize("impossible", ["refuse", "skip"])
def test_what_this_machine_cannot_do_is_refused_or_left_out(
    plan: Path, impossible: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.write_text(f'[chaos]\nstandby = true\nimpossible = "{impossible}"\n{PLAN}', encoding="utf-8")
    code = main(["chaos", str(plan), "--dry"])
    said = capsys.readouterr()
    if impossible == "refuse":
        assert code == 2
        assert f"no takeover here: {NO_STANDBY}; leave it out, or say impossible" in said.err
    else:
        assert code == 0
        assert "no takeover here, left out" in said.err
        assert said.out == "    1.0 s  kill anna\n"


def test_settings_of_the_run_can_be_changed_and_are_checked(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(PLAN, encoding="utf-8")
    assert main(["chaos", str(plan), "--dry", "--set", "run.ruonds=3"]) == 2
    assert "run.ruonds is unknown; did you mean run.rounds?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("chaos", "fault", "says"),
    [
        ("", PLAN.partition("[run]")[0], f"fault.kind: no takeover here: {NO_STANDBY}"),
        ("[chaos]\nstandby = true\n", "", f"chaos.standby: no standby here: {NO_STANDBY}"),
    ],
)
def test_without_a_standby_a_plan_is_told_so_in_one_line_whichever_way_it_asks(
    plan: Path, chaos: str, fault: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "[run]" + PLAN.partition("[run]")[2]
    plan.write_text(chaos + fault + run, encoding="utf-8")
    assert main(["chaos", str(plan), "--dry"]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    plan.write_text((chaos or "[chaos]\n") + 'impossible = "skip"\n' + fault + run, encoding="utf-8")
    assert main(["chaos", str(plan), "--dry"]) == 0
    said = capsys.readouterr().err
    assert f"left out: {NO_STANDBY}" in said and said.count("\n") == 1


def test_a_dry_run_for_scripts_is_one_object(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text("[chaos]\nseed = 3\n[rates]\nlatency_learner_per_hour = 60\n[run]\n[[learner]]\nname = 'anna'\n")
    assert main(["chaos", str(plan), "--dry", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["plan"], shown["learners"], shown["chaos"]["seed"]) == (str(plan), ["anna"], 3)
    assert shown["faults"] and {fault["kind"] for fault in shown["faults"]} == {"latency"}
