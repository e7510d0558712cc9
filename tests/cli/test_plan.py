"""``gruppetto plan``: from a line of wishes to a RUN.toml that runs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.cli.plan_file import reasons
from gruppetto.cli.plan_notes import notes
from gruppetto.cli.plan_sites import between, read_sites, sites_text
from gruppetto.config import load_run
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.machine import MachineProfile, read_machine
from gruppetto.sim.planner import plan

QUICK = [
    "plan",
    "--chips",
    "300k",
    "--params",
    "20B",
    "--step-s",
    "2s",
    "--gbit-s",
    "20 Gbit/s",
    "--learners",
    "2",
    "4",
]


def test_a_plan_for_scripts_and_a_run_file_that_train_and_syncer_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, file = tmp_path / "machine.json", tmp_path / "new" / "run.toml"
    machine.write_text(MachineProfile(persist_s=0.02, persist_bytes_per_s=2e9).to_json())
    assert main([*QUICK, "--machine", str(machine), "--rounds", "5k", "--out", str(file), "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "simulating" in said.err
    chosen = found["settings"]
    for endless in (False, True):
        config = load_run(file, endless=endless)
        assert config.rounds == 5000
        for name in ("num_learners", "min_quorum", "sync_period", "num_fragments", "overlap_steps", "durability"):
            assert getattr(config.protocol, name) == chosen[name]
        assert (config.codec.uplink, config.codec.downlink) == (chosen["uplink"], chosen["downlink"])
        assert config.train.checkpoint_every_rounds == chosen["checkpoint_every_rounds"]
    plain = found["plain_data_parallel"]
    assert (
        plain["better"] == (plain["value"] > found["value"] + 0.005) == plain["why"].startswith("plain data parallel")
    )
    assert not [word for word in ("assumed", "measured while", "the run ends") if word in " ".join(found["notes"])]
    assert found["run_toml"] == file.read_text()
    assert [command.split()[1] for command in found["start"]] == ["certs", "syncer", "learner"]
    assert all(str(file) in command for command in found["start"][1:])
    assert set(chosen) <= set(found["reasons"])
    assert 0 < found["expected"]["one_elastic_job"] < found["expected"]["goodput"] < 1
    assert main([*QUICK, "--out", str(file)]) == 2  # it is there already


def test_a_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ["--chips", "64", "--params", "350M", "--step-s", "400ms", "--sites", "2", "--learners", "2"]
    assert main(["plan", *wishes, "--gbit-s", "1"]) == 0
    said = capsys.readouterr().out
    for part in (
        "num_learners",
        "expect   goodput",
        "what would change this:",
        "data parallel between",
        "are assumed",
        "decoupled learners are better",
        "[run]",
    ):
        assert part in said
    commands = [line.split() for line in said[said.index("start with") :].splitlines()[2:]]
    assert [words[1] for words in commands] == ["certs", "syncer", "learner"]
    for words in commands:  # each is one that there is, with flags that it has
        with pytest.raises(SystemExit):
            main([words[1], "--help"])
        told = capsys.readouterr().out
        assert [word for word in words if word.startswith("--") and word not in told] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--chips", "many"], "--chips: is 'many'; use a whole number"),
        (["--gbit-s", "wide"], "--gbit-s: is 'wide'; use a bandwidth"),
        (["--params", "0"], "--params"),
        (["--syncer-gib", "-3"], "use an amount"),
        (["--mtbi-years", "often"], "--mtbi-years"),
        (["--mtbi-years", "1e-300"], "; use a longer --mtbi-years, or fewer --chips"),
        (["--step-s", "1e300"], "--step-s: is 1e+300; use 1e-06 to 1e+06"),
        (["--step-s", "1e-300"], "--step-s: is 1e-300; use 1e-06 to 1e+06"),
        (["--gbit-s", "1e-300"], "--gbit-s: is 1e-300; use 1e-06 to 1e+09"),
        (["--learners", "2", "--sites", "4"], "plan: cannot be done: 2 learners at 4 sites"),
        (["--machine", "nowhere.json"], "gruppetto doctor --measure"),
    ],
)
def test_nonsense_is_refused_with_the_fix(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_one_job_is_better_where_it_is_and_needs_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--chips", "8"]) == 0
    said = capsys.readouterr().out
    assert "note: plain data parallel is better: one elastic job keeps" in said and "M = 2 keeps" in said
    ours = ("min_quorum", "needs  ", "syncer  ", "Gbit/s in the mean", "[run]", "start with")
    assert not [word for word in ours if word in said]
    assert main(["plan", "--chips", "8", "--learners", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plain_data_parallel"]["better"] and found["plain_data_parallel"]["value"] > found["value"]


def test_what_was_measured_under_load_and_a_run_too_short_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine := tmp_path / "machine.json").write_text(MachineProfile(persist_s=0.02, load_per_core=3.0).to_json())
    assert main([*QUICK, "--machine", str(machine), "--rounds", "5"]) == 0
    said = capsys.readouterr().out
    assert "note: the machine was measured while 3 processes wanted each of its cores" in said
    assert "note: the run ends with round 5, before every fragment has been synchronised once" in said


def test_a_machine_is_read_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    profile = MachineProfile(fold_elements_per_s=1e8, link_bytes_per_s=None, start_s=2.5)
    file.write_text(profile.to_json())
    assert read_machine(file) == profile
    os.mkfifo(pipe := tmp_path / "pipe")
    assert main(["plan", "--machine", str(pipe)]) == 2
    assert "not a regular file" in capsys.readouterr().err
    for wrong in ("[]", "{", '{"hosts": "two"}', '{"speed": 1}', '{"persist_s": -1}'):
        file.write_text(wrong)
        assert main(["plan", "--machine", str(file)]) == 2
        assert str(file) in capsys.readouterr().err


SITES = """
[[site]]
name = "campus"
learners = 2
up = "2Gbit/s"
down = "2Gbit/s"
rtt = "30ms"

[[site]]
name = "cloud"
learners = 1
up = "400Mbit/s"
rtt = "120ms"
"""


def test_a_plan_for_sites_says_where_the_syncer_is_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(SITES)
    wishes = ["plan", "--chips", "24", "--params", "350M", "--step-s", "1s", "--gbit-s", "1", "--sites", str(file)]
    assert main([*wishes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sites, chosen = found["sites"], found["settings"]
    assert (chosen["num_learners"], sites["serving"], sites["fits"]) == (3, ["campus"], True)
    cloud, campus = sites["links"]["cloud"], sites["links"]["campus"]
    assert cloud["up_bytes_a_day"] == pytest.approx(campus["down_bytes_a_day"])
    # --gbit-s is what a site has that does not say.
    a_day = 1e9 / 8 * 86_400
    assert cloud["down_use"] == pytest.approx(cloud["down_bytes_a_day"] / a_day)
    assert cloud["up_use"] == pytest.approx(cloud["up_bytes_a_day"] / a_day / 0.4)
    assert cloud["trip_s"] > 3 * 0.12 and campus["trip_s"] == 0
    assert sites["others"][0]["serving"] != ["campus"]
    assert {(each["uplink"], each["downlink"]) for each in sites["least_periods"]} >= {("int4", "bf16")}
    # The same for people, of a plan that is simulated for less long.
    named = read_sites(file, gbit_s=1.0)
    cluster = between(Cluster(chips=24, parameters=350_000_000), named, latency=False)
    said = sites_text(plan(cluster, learners=[3], boundaries=30), named)
    assert "syncer at campus" in said and "in time: bf16 up fp32 down from H =" in said
    assert "more than a step" not in said
    assert "one host for the syncer" not in said
    slow = MachineProfile(persist_bytes_per_s=1e7, latency_s=4e-6)
    found_slow = plan(replace(cluster, machine=slow), learners=[3], boundaries=30)
    assert "one host for the syncer has a round every" in sites_text(found_slow, named)
    kept_up = {str(reasons(each)["sync_period"]) for each in (found_slow, plan(cluster, learners=[3], boundaries=30))}
    assert sum("keep up" in each for each in kept_up) == 1
    assert any("the latency is taken to be 4 µs" in note for note in notes(found_slow))
    assert not any("the latency" in note for note in notes(plan(cluster, learners=[3], boundaries=30)))
    home = replace(named[1], up_gbit_s=0.001)
    said = sites_text(plan(cluster, learners=[3], boundaries=30), [named[0], home])
    assert "cloud: an answer takes" in said and "bf16 up fp32 down never" in said


@pytest.mark.parametrize(
    ("was", "now", "fix"),
    [
        ("learners = 1", "learners = 1.5", "use a whole number"),
        ('up = "400Mbit/s"', 'up = "wide"', "use a bandwidth"),
        ('rtt = "120ms"', 'latency = "120ms"', "latency"),
        ('name = "cloud"', 'name = "campus"', "name each site once"),
        ("[[site]]", "[[place]]", "place"),
    ],
)
def test_sites_that_are_not_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], was: str, now: str, fix: str
) -> None:
    file = tmp_path / "sites.toml"
    file.write_text(SITES.replace(was, now))
    assert main(["plan", "--sites", str(file)]) == 2
    assert fix in capsys.readouterr().err


def test_a_place_that_takes_no_file_is_refused_before_anything_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--out", "/dev/null/run.toml"]) == 2
    assert capsys.readouterr().err == (
        "gruppetto: /dev/null/run.toml: cannot be written (/dev/null is no directory); name another file\n"
    )
