"""The chaos verb: what it says before anything runs, and what it makes of a plan that this machine cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main

PLAN = """
[[fault]]
at_s = 2
kind = "disk-full"

[[fault]]
at_s = 1
kind = "kill"
who = "anna"

[run]
rounds = 9

[[learner]]
name = "anna"
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gruppetto.chaos.real.machine._may_mount", lambda: False)
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
    plan.write_text(f'[chaos]\nimpossible = "{impossible}"\n{PLAN}', encoding="utf-8")
    code = main(["chaos", str(plan), "--dry"])
    said = capsys.readouterr()
    if impossible == "refuse":
        assert code == 2
        assert "no disk-full here: a small disk needs the right to mount a tmpfs (root); leave it out" in said.err
    else:
        assert code == 0
        assert "no disk-full here, left out" in said.err
        assert said.out == "    1.0 s  kill anna\n"


@pytest.mark.parametrize("text", ["", "\n \n", "# nothing yet\n"])
@pytest.mark.parametrize("more", [[], ["--dry"], ["--seeds", "1", "2"]], ids=["run", "dry", "seeds"])
def test_a_plan_that_says_nothing_is_refused(
    text: str, more: list[str], plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.write_text(text, encoding="utf-8")
    assert main(["chaos", str(plan), *more]) == 2
    said = capsys.readouterr()
    assert said.err == (
        f"gruppetto: {plan}: says nothing; write what goes wrong, [[fault]] or [rates], and the run's settings; see "
        "examples/chaos\n"
    )
    assert not said.out and list(plan.parent.iterdir()) == [plan]


def test_a_setting_above_all_tables_is_told_where_it_belongs(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(f"sync_period = 4\n{PLAN}", encoding="utf-8")
    assert main(["chaos", str(plan), "--dry"]) == 2
    assert capsys.readouterr().err == f"gruppetto: {plan}: sync_period stands in no table; write it below [run]\n"


def test_a_takeover_without_a_standby_is_refused_in_one_line(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(PLAN.replace("disk-full", "takeover"), encoding="utf-8")
    assert main(["chaos", str(plan), "--dry"]) == 2
    said = capsys.readouterr().err
    assert "fault.kind: there is no standby; say standby = true in [chaos]" in said and said.count("\n") == 1


def test_each_seed_has_a_plan_of_its_own(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text("[rates]\nkill_learner_per_hour = 60\n[run]\n[[learner]]\nname = 'anna'\n", encoding="utf-8")
    assert main(["chaos", str(plan), "--dry", "--json", "--seeds", "1", "2", "3"]) == 0
    seeds = json.loads(capsys.readouterr().out)["seeds"]
    assert [seeds[name]["chaos"]["seed"] for name in ("1", "2", "3")] == [1, 2, 3]
    assert len({json.dumps(each["faults"]) for each in seeds.values()}) == 3
    assert main(["chaos", str(plan), "--dry", "--seeds", "2"]) == 0
    assert capsys.readouterr().out.startswith("seed 2:\n")
    assert main(["chaos", str(plan), "--dry", "--seeds", "1", "1"]) == 2
    assert "--seeds: holds 1; name each seed once" in capsys.readouterr().err


def test_settings_of_the_run_can_be_changed_and_are_checked(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text(PLAN, encoding="utf-8")
    assert main(["chaos", str(plan), "--dry", "--set", "run.ruonds=3"]) == 2
    assert "run.ruonds is unknown; did you mean run.rounds?" in capsys.readouterr().err


def test_a_dry_run_for_scripts_is_one_object(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan.write_text("[chaos]\nseed = 3\n[rates]\nlatency_learner_per_hour = 60\n[run]\n[[learner]]\nname = 'anna'\n")
    assert main(["chaos", str(plan), "--dry", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["plan"], shown["learners"], shown["chaos"]["seed"]) == (str(plan), ["anna"], 3)
    assert shown["faults"] and {fault["kind"] for fault in shown["faults"]} == {"latency"}
