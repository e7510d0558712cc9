"""``gruppetto train --virtual``: a chaos plan in virtual time, with rivals, to a report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gruppetto.chaos.real.reading import read_live_plan
from gruppetto.cli.__main__ import main
from gruppetto.cli.virtual import STATE, read_virtual_plan
from gruppetto.errors import SettingError
from gruppetto.sim.mishaps import MishapKind

PLAN = """
[chaos]
seed = 3
lasts_s = 20
impossible = "{impossible}"
[rates]
kill_learner_per_hour = 700
[[fault]]
at_s = 6
kind = "{kind}"
who = "anna"
[virtual]
away_mean_s = 3.0
save_every_s = 0
rivals = ["elastic"]
[[guest]]
name = "gast"
joins_s = 4
leaves_s = 12
[run]
rounds = 16
num_fragments = 4
sync_period = 4
[model]
dim = 16
layers = 1
heads = 2
ffn_dim = 32
context = 16
[data]
corpus = "text:{text}"
[train]
batch_size = 2
eval_every_rounds = 8
eval_windows = 8
[[learner]]
name = "anna"
[[learner]]
name = "ben"
slowdown = 1.5
"""


def written(place: Path, *, kind: str = "slow", impossible: str = "refuse") -> Path:
    text = place / "text.txt"
    text.write_text("the rider follows the wheel of the one ahead. " * 400)
    plan = place / "plan.toml"
    plan.write_text(PLAN.format(kind=kind, impossible=impossible, text=text))
    return plan


def test_a_plan_runs_to_a_report_with_its_rival_and_the_killed_one_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = tmp_path / "run", written(tmp_path)
    asked = ["train", "--virtual", str(plan), "--cache", str(tmp_path), "--json", "--out"]
    assert main([*asked, str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rounds"] == 16 and report["finished"] and set(report["checks"].values()) == {"ok"}
    assert report["learners"].keys() == {"anna", "ben", "gast"} and report["learners"]["gast"]["state"] == "left"
    assert 1.3 < report["learners"]["ben"]["step_s"] < 1.7  # by nature
    assert report["learners"]["anna"]["step_s"] > 1.7  # by mishap
    assert report["deaths"] and report["eval"]["loss"] < report["eval"]["curve"][0][1]
    assert [rival["mode"] for rival in report["rivals"]] == ["elastic"]
    assert (out / "figures" / "loss-by-time.png").exists() and (out / "report.html").exists()
    assert read_live_plan(out / "plan.toml").faults  # what was drawn can be run again

    cut, state = tmp_path / "cut", tmp_path / "cut" / STATE
    killed = subprocess.run([sys.executable, "-c", DIES, *asked, str(cut)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(path.name for path in state.iterdir()) == ["round-2", "round-3"]
    assert main(["status", str(cut)]) == 0
    assert "in virtual time, round " in (said := capsys.readouterr().out) and ", stopped; " in said
    plan.unlink()  # all that it was told lies in its directory
    with (tmp_path / "text.txt").open("r+") as text:
        text.write("THE")
    assert main(["resume", str(cut), "--cache", str(tmp_path)]) == 2
    assert "text.txt: is not what the run was begun on" in capsys.readouterr().err and (state / "round-3").exists()
    with (tmp_path / "text.txt").open("r+") as text:
        text.write("the")
    assert main(["resume", str(cut), "--cache", str(tmp_path), "--json"]) == 0
    resumed = capsys.readouterr()
    assert json.loads(resumed.out) == report and f"going on from {state / 'round-2'}" in resumed.err
    for name in ("trace.jsonl", "corpus.json", "rivals/elastic/train.jsonl", "figures/loss-by-time.svg"):
        assert (cut / name).read_bytes() == (out / name).read_bytes(), name
    assert not state.exists() and main(["resume", str(cut)]) == 0
    assert "nothing is left to be resumed" in capsys.readouterr().out


DIES = """
import os, signal, sys
from gruppetto.attach import part
from gruppetto.cli.__main__ import main
written, write = [], part.write_durably
def write_and_die(path, parts):
    if len(written) == 5:
        os.kill(os.getpid(), signal.SIGKILL)  # with the tensors of the third state on disk, and no word of them
    written.append(path)
    write(path, parts)
part.write_durably = write_and_die
sys.exit(main(sys.argv[1:]))
"""


def test_what_virtual_time_does_not_have_is_refused_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingError, match="no partition in virtual time"):
        read_virtual_plan(written(tmp_path, kind="partition"))
    left = read_virtual_plan(written(tmp_path, kind="partition", impossible="skip"))
    assert {mishap.kind for mishap in left.virtual.mishaps} == {MishapKind.KILL}
    assert "left out" in capsys.readouterr().err
    assert read_virtual_plan(written(tmp_path, kind="nan")).virtual.mishaps != left.virtual.mishaps


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("[virtual]\njitter = 2", "virtual.jitter"),
        ("[virtual]\naway_mean_s = 0", "virtual.away_mean_s"),
        ("[virtual]\nrivls = []", "did you mean rivals"),
        ('[[guest]]\nname = "g"\njoins_s = 4\nleaves_s = 3', "guest.leaves_s"),
        ('[[guest]]\nname = "g"\njoins = 4', "did you mean joins_s"),
    ],
)
def test_mistakes_are_refused_with_the_fix(tmp_path: Path, change: str, says: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(change)
    with pytest.raises(SettingError, match=says):
        read_virtual_plan(plan)


@pytest.mark.parametrize(
    "change",
    [
        "step_s = 2.0",
        "jitter = 0.2",
        "latency_s = 0.1",
        "merge_s = 0.2",
        "persist_s = 0.2",
        "away_mean_s = 9.0",
        "away_shape = 1.0",
        "away_power = 1.0",
        "syncer_restart_s = 9.0",
        "donates = false",
        "rewarm_steps = 5",
    ],
)
def test_every_setting_reaches_the_world(tmp_path: Path, change: str) -> None:
    plan = tmp_path / "plan.toml"
    faults = """
[chaos]
lasts_s = 60
[rates]
kill_learner_per_hour = 500
kill_syncer_per_hour = 500
[virtual]
"""
    plan.write_text(faults)
    before = read_virtual_plan(plan).virtual
    plan.write_text(faults + change)
    changed = read_virtual_plan(plan).virtual
    assert len(before.mishaps) > 4 and changed != before
    assert [(m.at_s, m.who) for m in changed.mishaps] == [(m.at_s, m.who) for m in before.mishaps]
