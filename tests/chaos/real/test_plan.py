"""A plan in, faults out; what cannot be is refused in one line with file, key and fix."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gruppetto.chaos.real.kinds import KINDS, LINK_KINDS
from gruppetto.chaos.real.plan import LiveFault, LivePlan
from gruppetto.chaos.real.reading import read_live_plan, to_plan_toml
from gruppetto.errors import SettingError

PLANS = sorted((Path(__file__).resolve().parents[3] / "examples" / "chaos").glob("*.toml"))
RUN = '[run]\nrounds = 9\n[[learner]]\nname = "anna"\n[[learner]]\nname = "ben"\n'


def read(tmp_path: Path, text: str) -> LivePlan:
    file = tmp_path / "PLAN.toml"
    file.write_text(text + RUN, encoding="utf-8")
    return read_live_plan(file)


@pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
def test_ready_plans_are_plans_and_their_resolved_files_read_back(file: Path, tmp_path: Path) -> None:
    plan = read_live_plan(file)
    assert plan.faults
    again = tmp_path / "again.toml"
    again.write_text(to_plan_toml(plan), encoding="utf-8")
    assert read_live_plan(again) == plan
    assert [fault.at_s for fault in plan.faults] == sorted(fault.at_s for fault in plan.faults)


def test_there_are_ready_plans() -> None:
    named = {"storm", "storm-8x", "syncer-kills", "bad-learners", "slow-link", "everything"}
    assert named <= {file.stem for file in PLANS}


def test_the_seed_decides_what_is_drawn(tmp_path: Path) -> None:
    rates = "[rates]\nkill_learner_per_hour = 120\nstop_syncer_per_hour = 60\n"
    plans = [read(tmp_path, f"[chaos]\nseed = {seed}\nlasts_s = 600\n{rates}") for seed in (3, 3, 4)]
    assert plans[0].faults == plans[1].faults != plans[2].faults
    kinds = [(fault.kind, fault.who == "syncer") for fault in plans[0].faults]
    assert set(kinds) == {("kill", False), ("stop", True)}
    assert {fault.who for fault in plans[0].faults} == {"anna", "ben", "syncer"}
    assert all(0 < fault.at_s < 600 for fault in plans[0].faults)
    # Another rate changes nothing in the first.
    alone = read(tmp_path, "[chaos]\nseed = 3\nlasts_s = 600\n[rates]\nkill_learner_per_hour = 120\n")
    times = [fault.at_s for fault in plans[0].faults if fault.kind == "kill"]
    assert [fault.at_s for fault in alone.faults] == times


def test_how_many_are_drawn(tmp_path: Path) -> None:
    counts = [
        len(read(tmp_path, f"[chaos]\nseed = {s}\nlasts_s = 3600\n[rates]\nkill_learner_per_hour = 125\n").faults)
        for s in range(20)
    ]
    assert sum(counts) / 20 == pytest.approx(125, rel=0.1)


def test_a_fault_knows_the_defaults_of_its_kind() -> None:
    for name, kind in KINDS.items():
        fault = LiveFault(at_s=1, kind=name, who="anna")
        assert fault.lasts_s == kind.lasts_s
        assert fault.dials == dict(kind.takes)
        assert (fault.way is not None) == kind.has_way
    assert set(KINDS) >= LINK_KINDS


FAULT = '[[fault]]\nat_s = 1\nkind = "{}"\n{}\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[chaso]\n", "chaso is unknown; did you mean chaos?"),
        ("[chaos]\nsede = 1\n", "chaos: sede is unknown; did you mean seed?"),
        ("[chaos]\nlasts_s = 0\n", "chaos.lasts_s: is 0"),
        ("[chaos]\nlasts_s = nan\n", "chaos.lasts_s: is nan"),
        ("[chaos]\nlasts_s = 1e300\n[rates]\nkill_learner_per_hour = 1\n", "chaos.lasts_s: is 1e+300; use seconds"),
        ("[chaos]\nlasts_s = 604801\n", "more than 0 and at most 604800 (a week)"),
        (
            "[chaos]\nlasts_s = 86400\n[rates]\nkill_learner_per_hour = 300\nstop_learner_per_hour = 300\n",
            "draw more than 10,000 faults in 86400 s; lower the rates, or lasts_s in [chaos]",
        ),
        ("[chaos]\nimpossible = 'maybe'\n", "chaos.impossible: is 'maybe'; use one of refuse, skip"),
        ("[rates]\nkill_lerner_per_hour = 1\n", "did you mean kill_learner_per_hour?"),
        ("[rates]\nnan_syncer_per_hour = 1\n", "rates: nan_syncer_per_hour is unknown"),
        ("[rates]\nkill_learner_per_hour = -1\n", "rates.kill_learner_per_hour: is -1; use a number from 0"),
        (FAULT.format("kil", ""), "fault.kind: kil is unknown; did you mean kill?"),
        (FAULT.format("kill", "lasts_s = 3"), "fault.lasts_s: a kill is over at once; leave it out"),
        (FAULT.format("kill", 'who = "ana"'), "fault.who: ana is unknown; did you mean anna?"),
        (FAULT.format("nan", 'who = "syncer"'), "fault.who: nan hits a learner, not syncer; name a learner"),
        (FAULT.format("disk-full", 'who = "anna"'), "disk-full hits the syncer, not anna"),
        (FAULT.format("latency", "delay_s = -1"), "fault.delay_s: is -1; use 0 to 60"),
        (FAULT.format("latency", "share = 0.1"), "fault.share: a latency has none; leave it out"),
        (FAULT.format("latency", 'way = "sideways"'), "fault.way: is 'sideways'; use one of both, up, down"),
        (FAULT.format("stop", 'way = "up"'), "fault.way: a stop goes both ways"),
        (FAULT.format("stop", "lasts_s = 'long'"), "fault.lasts_s: is 'long'; use a number"),
        (FAULT.format("stop", "wo = 'anna'"), "fault: wo is unknown; did you mean who?"),
        ("fault = 3\n", "fault: is 3; write [[fault]] once for each"),
        ("[expect]\nmin_throughput = 2\n", "expect.min_throughput: is 2.0; use a share from 0 to 1"),
        ("[compare]\nseed = 1\n", "compare: seed is unknown; did you mean seeds?"),
    ],
)
def test_what_cannot_be_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refused:
        read(tmp_path, text)
    assert says in str(refused.value)
    assert "PLAN.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_learner_cannot_be_the_syncer_and_only_decoupled_runs_ride(tmp_path: Path) -> None:
    plan = read(tmp_path, "")
    with pytest.raises(SettingError, match="a learner is called syncer"):
        replace(plan, run=replace(plan.run, learners=(replace(plan.run.learners[0], name="syncer"),)))
    with pytest.raises(SettingError, match="use decoupled"):
        replace(plan, run=replace(plan.run, mode="single"))
    with pytest.raises(SettingError, match=r"syncer.shards: faults are for a run with one syncer; use 1"):
        replace(plan, run=replace(plan.run, syncer=replace(plan.run.syncer, shards=2)))


def test_a_takeover_asks_for_a_standby_and_the_run_gets_one(tmp_path: Path) -> None:
    takeover = FAULT.format("takeover", "")
    with pytest.raises(SettingError, match=r"there is no standby; say standby = true in \[chaos\]"):
        read(tmp_path, takeover)
    plan = read(tmp_path, f"[chaos]\nstandby = true\n{takeover}")
    assert plan.run.launch.standby and plan.faults[0].who == "syncer"
    (tmp_path / "again.toml").write_text(to_plan_toml(plan), encoding="utf-8")
    assert read_live_plan(tmp_path / "again.toml") == plan


def test_a_seed_takes_the_place_of_all_seeds(tmp_path: Path) -> None:
    file = tmp_path / "PLAN.toml"
    file.write_text(f"[chaos]\nseed = 5\n[rates]\nkill_learner_per_hour = 99\n[compare]\nseeds = [0, 1]\n{RUN}")
    plans = [read_live_plan(file, seed=seed) for seed in (5, 6)]
    assert plans[0].faults == read_live_plan(file).faults != plans[1].faults
    assert [plan.compare.seeds for plan in plans] == [(5,), (6,)]
    assert [(plan.run.train.seed, plan.run.train.model.seed) for plan in plans] == [(5, 5), (6, 6)]
    file.write_text(RUN, encoding="utf-8")
    assert read_live_plan(file, seed=6).compare.seeds == ()


def test_a_plan_in_plain_values(tmp_path: Path) -> None:
    plan = read(tmp_path, FAULT.format("latency", "who = 'anna'") + FAULT.format("kill", "who = 'anna'"))
    kill, latency = json.loads(json.dumps(plan.as_json(), allow_nan=False))["faults"]
    assert kill == {"at_s": 1, "kind": "kill", "who": "anna", "lasts_s": 0.0}
    assert latency["lasts_s"] is None and latency["delay_s"] == 0.05
