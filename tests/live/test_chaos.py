"""A real training, disturbed: every invariant holds, and what was done is in the verdict, in the report and on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gruppetto.trace.metrics import measure

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PLAN = """
[chaos]
seed = 5
standby = true

[run]
rounds = 200
num_fragments = 6
sync_period = 6
rounds_in_flight = 2
overlap_steps = 4
apply = "carry"
liveness_s = 4

[model]
dim = 32
layers = 2
heads = 2
ffn_dim = 64

[train]
batch_size = 4
eval_every_rounds = 50
eval_windows = 16

[[learner]]
name = "anna"
min_step_s = 0.2

[[learner]]
name = "ben"
min_step_s = 0.2

[[learner]]
name = "clara"
min_step_s = 0.2
"""
FAULTS = (
    # There and back takes longer than a step: with one round at a time she would be in none.
    {"at_s": 0, "kind": "latency", "who": "clara", "delay_s": 0.13},
    {"at_s": 3, "kind": "kill", "who": "anna"},
    {"at_s": 6, "kind": "nan", "who": "ben", "lasts_s": 4},
    {"at_s": 12, "kind": "stop", "who": "clara", "lasts_s": 6},
    {"at_s": 16, "kind": "cut", "who": "ben"},
    {"at_s": 20, "kind": "takeover"},
    {"at_s": 26, "kind": "half-open", "who": "clara"},
    {"at_s": 32, "kind": "takeover"},
)


def test_a_disturbed_run_keeps_its_invariants(tmp_path: Path) -> None:
    listed = ["[[fault]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in f.items()) for f in FAULTS]
    (tmp_path / "PLAN.toml").write_text(PLAN + "\n".join(listed), encoding="utf-8")
    run = tmp_path / "run"
    ran = subprocess.run(
        [sys.executable, "-m", "gruppetto", "chaos", str(tmp_path / "PLAN.toml"), "--out", str(run), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr[-3000:])
    verdict = json.loads(ran.stdout)
    checks = {check["name"]: check for check in verdict["checks"]}
    assert verdict["passed"]
    assert checks["nothing-merged-is-lost"]["figures"] == {"rounds": 200, "syncer_lives": 3, "wrong": []}
    assert checks["ledger-balances"]["figures"]["tokens"]["lost"] > 0
    assert checks["never-stands-still"]["figures"]["uptime"] >= 0.999
    assert checks["rejections-are-explained"]["figures"]["rejected"]["not-finite"] > 0
    assert checks["learner-recovery"]["figures"]["recoveries"] == 1
    found = measure(run / "trace.jsonl")
    rounds = found.rounds
    assert found.replay is not None and found.replay.identical
    assert sum("clara" in r.participants for r in rounds.values()) > 40
    # Two rounds were open at once, and closed in order.
    ends = {t: r.done_at or 0.0 for t, r in rounds.items()}
    assert sum(rounds[t].asked_at < ends[t - 1] for t in rounds if t - 1 in rounds) > 60
    assert sorted(rounds, key=ends.__getitem__) == sorted(rounds)
    # The second time by one that was started in the place of the first, while the run went on.
    assert checks["standby-takes-over"]["figures"] == {"takeovers": 2, "wrong": []}
    assert (checks["syncer-recovery"]["figures"]["kills"], checks["syncer-recovery"]["figures"]["takeovers"]) == (2, 2)
    assert checks["heartbeats"]["figures"]["sent"] > 60
    # Killed, stopped, cut, and half-open: each was noticed.
    assert checks["no-false-deaths"]["figures"]["away"] >= 4
    report = json.loads((run / "report.json").read_bytes())
    assert [death["process"] for death in report["deaths"]] == ["anna", "syncer", "syncer"]
    processes = json.loads((run / "processes.json").read_bytes())
    assert processes["syncer"]["restarts"] + processes["standby"]["restarts"] == 2
    assert report["verdict"] == json.loads((run / "verdict.json").read_bytes())
    # Steps of a few milliseconds are padded.
    assert all(each["step_s"] > 0.18 for each in report["learners"].values())
    assert (run / "figures" / "chaos.png").exists()
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "What went wrong, to whom" in page
    assert "nothing-merged-is-lost" in page
    # What was done can be done again.
    again = subprocess.run(
        [sys.executable, "-m", "gruppetto", "chaos", str(run / "chaos" / "plan.toml"), "--dry"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) == len(FAULTS)
