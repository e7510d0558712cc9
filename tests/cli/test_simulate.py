"""``gruppetto simulate``: numbers as people write them, rows as scripts read them, traces as reports take them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.cli import simulate
from gruppetto.cli.__main__ import main
from gruppetto.cli.quantities import as_count, as_number, as_seconds, as_years, counted
from gruppetto.cli.simulate_tables import paper_table, plain_table
from gruppetto.errors import SettingError
from gruppetto.sim.goodput import Outcome, Row, run
from gruppetto.sim.machine import MachineProfile
from gruppetto.sim.scenario import Scenario

QUICK = ["simulate", "--chips", "300k", "--hours", "0.5", "--stride", "30"]


def test_rows_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--learners", "2", "4", "--mtbi-years", "1", "--seed", "3", "--seeds", "2", "--json"]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["rows"]
    assert [(r["system"], r["chips"], r["learners"]) for r in rows] == [
        ("data-parallel", 300_000, 1),
        ("elastic", 300_000, 1),
        ("decoupled", 300_000, 2),
        ("decoupled", 300_000, 4),
    ]
    assert all(0 < r["goodput"] <= 1 and 0 < r["uptime"] <= 1 and r["ci95"] > 0 for r in rows)
    assert "8/8: decoupled, M = 4, 300k chips, seed 4" in said.err


def test_the_same_seed_gives_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for seed in ("1", "1", "2"):
        assert main([*QUICK, "--learners=2,3", "--seed", seed, "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--learners", "2", "--systems", "elastic", "diloco", "decoupled"]) == 0
    said = capsys.readouterr().out
    assert "goodput" in said and "diloco" in said and "300k" in said


def test_the_papers_table_has_the_error_of_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--table", "paper", "--chips", "150k", "300k", "--hours", "0.5", "--stride", "60"]
    assert main([*arguments, "--seeds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 6 * 2
    known = [line for line in lines[1:] if " 150k " in line]
    assert len(known) == 6
    assert all("+" in line or "-" in line.replace("data-parallel", "") for line in known)


def test_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main([*QUICK, "--learners", "2", "--figure", str(tmp_path / "new" / "goodput.png")]) == 0
    assert (tmp_path / "new" / "goodput.png").read_bytes().startswith(b"\x89PNG")


def test_one_number_of_chips_is_drawn_as_bars_and_several_as_lines() -> None:
    clusters = pytest.importorskip("gruppetto.report.clusters")
    row = Row(system="elastic", chips=300_000, learners=1, goodput=0.8, uptime=1.0, ci95=None, seeds=1)
    more = replace(row, system="decoupled", learners=8, goodput=0.96, ci95=0.02)
    (bars,) = clusters.draw_goodput([row, more]).axes
    assert [bar.get_width() for bar in bars.patches] == [96.0, 80.0] and not bars.lines[1:] and bars.get_xlim()[0] == 0
    assert "300k chips, simulated" in bars.get_xlabel() and bars.get_xscale() == "linear"
    (lines,) = clusters.draw_goodput([row, more, replace(more, chips=1_200_000)]).axes
    assert [text.get_text() for text in lines.get_xticklabels()] == ["300k", "1.2M"]
    assert [text.get_text() for text in lines.get_legend().get_texts()] == ["elastic data parallel", "decoupled, M = 8"]


def test_a_trace_is_taken_by_report_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "day"
    more = ["--learners", "3", "--syncer-fails", "10min:20s", "--fails", "region:100k:1h:5min", "--trace", str(place)]
    assert main([*QUICK, *more]) == 0
    assert main(["replay", str(place)]) == 0
    assert main(["report", str(place), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["checks"] == {"replay": "ok", "ledger_balances": "ok", "ledger_agrees": "ok"}
    assert report["rounds"] > 30 and report["finished"] and report["wall_s"] == 1799.98
    told = {"what": "3 learners on 300k chips", "stride": 30, "hours": 0.5}
    assert report["world"] == "simulated" and report["simulated"].items() >= told.items()
    page = (place / "report.html").read_text()
    for part in ("Simulated, not measured", "decoupled, simulated, ", "chip-steps", "s per stretch of up to 30 steps"):
        assert part in page
    assert not [word for word in ("did not reach", "not evaluated", "perplexity") if word in page]
    row = ["--json", *QUICK[1:], *[word for word in more if word not in ("--trace", str(place))]]
    assert main(["simulate", *row, "--systems", "decoupled"]) == 0
    assert report["simulated"]["goodput"] == json.loads(capsys.readouterr().out)["rows"][0]["goodput"]
    _a_status_of_it(place, capsys)
    assert set(report["learners"]) == {"learner-0", "learner-1", "learner-2"}
    assert main([*QUICK, *more]) == 2  # it is there already


def test_a_plan_and_its_simulation_agree_on_who_takes_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slow syncer, and rounds of several steps: the plan's τ has everybody in them, a smaller one is spoken of."""
    machine = tmp_path / "machine.json"
    slow = MachineProfile(fold_elements_per_s=2e8, merge_elements_per_s=6e7, persist_bytes_per_s=1.4e9)
    machine.write_text(slow.to_json(), encoding="utf-8")
    cluster = ["--chips", "12288", "--mtbi-years", "never", "--step-s", "2.5s", "--gbit-s", "10", "--json"]
    priced = [*cluster, "--machine", str(machine), "--learners", "3"]
    assert main(["plan", *priced, "--params", "30B", "--sites", "3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    chosen = {name: str(plan["settings"][name]) for name in ("sync_period", "num_fragments", "overlap_steps")}
    run = ["--sync-period", chosen["sync_period"], "--fragments", chosen["num_fragments"], "--hours", "0.5"]
    run += ["--jitter", "0.05", "--systems", "decoupled", "--parameters", "30B"]
    assert main(["simulate", *priced, *run, "--overlap-steps", chosen["overlap_steps"]]) == 0
    said = capsys.readouterr()
    assert "under way" not in said.err
    taking_part = json.loads(said.out)["rows"][0]["participation"]
    assert taking_part == pytest.approx(plan["expected"]["participation"], abs=0.03)
    assert main(["simulate", *priced, *run]) == 0
    assert f"--overlap-steps {chosen['overlap_steps']} is what gruppetto plan would set" in capsys.readouterr().err


def _a_status_of_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its report, without it, and of one that was broken off."""
    for phase in ("ended", "ended", "stopped"):
        assert main(["status", str(place)]) == 0
        said = capsys.readouterr().out
        assert said.startswith("simulated, 3 learners on 300k chips: round ") and f", {phase}; " in said
        assert "s per stretch of up to 30 steps" in said and "None" not in said
        if not (place / "report.json").exists():
            trace = place / "trace.jsonl"
            trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
        (place / "report.json").unlink(missing_ok=True)
    assert main(["report", str(place)]) == 0
    assert "The simulation of 3 learners on 300k chips was broken off at round " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--learners", "0"], "--learners: is '0'; use a whole number of 1 or more"),
        (["--chips", "many"], "--chips: is 'many'"),
        (["--chips", "1.5"], "--chips: is '1.5'"),
        (["--chips", "4", "--learners", "8"], "8 learners on 4 chips; use at most 4, or more chips"),
        (["--mtbi-years", "-1"], "--mtbi-years: is '-1'"),
        (["--mtbi-years", "soon"], "--mtbi-years: is 'soon'"),
        (["--hours", "0"], "--hours: is '0'"),
        (["--step-s", "5parsecs"], "--step-s: is '5parsecs'"),
        (["--systems", "magic"], "--systems: 'magic' is no system"),
        (["--seeds", "0"], "--seeds: is 0; use 1 or more"),
        (["--seeds", "999999999999"], "--seeds: is 999999999999; use at most 100,000"),
        (["--seeds", "1.5"], "gruppetto: --seeds: a whole number is needed; see gruppetto simulate --help"),
        (["--seed", "x"], "gruppetto: --seed: a whole number is needed; see gruppetto simulate --help"),
        (["--stride", "0"], "--stride: is 0; use 1 or more"),
        (["--processes", "0"], "--processes: is 0; use 1 or more"),
        (["--table", "tennis"], "'tennis' is no table; use paper"),
        (["--fails", "rack:5"], "--fails: is 'rack:5'; use NAME:CHIPS:MTBI:RECOVERY"),
        (["--fails", "rack:5:1d:never"], "--fails rack: recovery: is 'never'; use a duration"),
        (["--link-fails", "6h"], "--link-fails: is '6h'; use MTBI:MEAN, such as 6h:60s"),
        (["--min-quorum", "3", "--learners", "2"], "min_quorum is 3 but num_learners is 2"),
        (["--trace", "x.jsonl", "--learners", "2", "4"], "a trace of 2 runs"),
        (["--gbit-s", "10"], "--gbit-s: means nothing without a machine; give --machine"),
        (["--overlap-steps", "24"], "overlap_steps is 24 but sync_period is 24"),
        (["--figure", "goodput.xyz"], "goodput.xyz: .xyz is no kind of picture; name a .png"),
        (["--figure", "/dev/null/goodput.png"], "/dev/null/goodput.png: cannot be written (/dev/null is no directory)"),
        (["--figure", "/dev"], "/dev: is a directory; name a file in it"),
        (["nothing.toml"], "nothing.toml: cannot be read (No such file or directory); name a SCENARIO.toml"),
        (["--lerners", "2"], "--lerners is not understood; did you mean --learners?"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--hours", "0.1", "--stride", "30", *arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


@given(st.integers(1, 2**40))
def test_counts_are_read_as_they_are_written(value: int) -> None:
    assert as_count(counted(value), where="") == value
    assert as_count(str(value), where="") == value


@given(st.floats(1e-3, 1e6), st.sampled_from(["ms", "s", "min", "h", "d", "w", "y"]))
def test_durations(value: float, unit: str) -> None:
    one = as_seconds(f"1{unit}", where="")
    assert as_seconds(f"{value:f} {unit}", where="", zero=True) == pytest.approx(value * one, rel=1e-3, abs=1e-2)


def test_words_shares_and_years() -> None:
    assert as_years("never", where="") == math.inf
    assert as_years("2", where="") == 2 * 365 * 86_400
    assert as_number("18%", where="") == 0.18
    for bad in ("", "k", "1e", "--", "1 2", "nan", "1x"):
        with pytest.raises(SettingError):
            as_count(bad, where="")
        with pytest.raises(SettingError):
            as_seconds(bad, where="")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mtbi-years", "1e-12"], "more than 2e+08 events in all; use fewer --hours, or larger --mtbi-years"),
        (["--fails", "a:1:1us:1us"], "data-parallel has about"),
        (["--link-fails", "1us:1us"], "decoupled has about 3.46e+11 faults and 7.37e+05 steps in 24 hours"),
        (["--syncer-fails", "1us:1us"], "decoupled has about"),
        (["--step-s", "1e-9"], "elastic has about 3.29e+03 faults and 8.64e+13 steps"),
        (["--hours", "1e9"], "use fewer --hours"),
        (["--spread", "1e300"], "--spread: spread is 1e+300; use 0 to 1000"),
        (["--chips", "e5"], "--chips: is 'e5'; use a whole number"),
        (["--chips", ".e5"], "--chips: is '.e5'; use a whole number"),
        (["--checkpoint-s", "never"], "--checkpoint-s: is 'never'; use a duration"),
        (["--restart-s", "never"], "--restart-s: is 'never'; use a duration"),
        (["--recovery-s", "never"], "--recovery-s: is 'never'; use a duration"),
        (["--latency", "never"], "--latency: is 'never'; use a duration"),
        (["--latency", "1e400"], "--latency: is '1e400'; use a duration"),
        (["--link-fails", "1h:never"], "--link-fails: is 'never'; use a duration"),
    ],
)
def test_what_would_not_end_is_refused_before_it_begins(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err and said.err.count("\n") == 1 and said.out == ""


def test_a_long_row_says_how_far_it_has_come_and_how_to_make_it_shorter(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter(range(0, 100, 2))

    class EveryLook:
        def now(self) -> float:
            return float(next(now))

    scenario = Scenario(chips=1000, learners=8, hours=10)
    progress = simulate.Progress([("elastic", scenario, 0), ("decoupled", scenario, 0)], EveryLook())
    progress.done(0, Outcome(system="elastic", chips=1000, learners=1, seed=0, goodput=0.5, uptime=0.5, stops=1))
    assert capsys.readouterr().err == "1/2: elastic, 1k chips, seed 0: goodput 50.0%\n", (
        "what tells nothing of the rest"
    )
    for hour in range(6):
        progress.passed(1, 3600.0 * hour)
    assert capsys.readouterr().err.splitlines() == [
        "  2 h of 10 h are simulated, about 48 s left",
        "  4 h of 10 h are simulated, about 30 s left",
    ]
    scenario = Scenario(chips=1000, learners=8, hours=100)
    simulate._say_what_takes_long([("decoupled", scenario, 0)])
    assert "a row has up to 3.1e+06 steps" in (said := capsys.readouterr().err) and "--stride 16" in said
    simulate._say_what_takes_long([("decoupled", replace(scenario, stride=16), 0), ("elastic", scenario, 0)])
    assert capsys.readouterr().err == ""


def test_an_interval_that_says_nothing_is_not_printed_as_if_it_did() -> None:
    def table(ci95: float | None) -> str:
        row = Row(system="elastic", chips=8, learners=1, goodput=0.5, uptime=1.0, ci95=ci95, seeds=2)
        return plain_table([row]) + paper_table([row])

    assert "± 4.0" in table(0.04) and "±" not in table(None)
    assert "90.8" not in table(0.908) and table(0.908).count("± ?: 2 seeds do not tell") == 2
    assert "use more --seeds, 4 or more" in table(0.908)


@pytest.mark.parametrize("stride", [1, 6])
def test_bytes_are_those_of_the_model_once_in_every_h_rounds(stride: int, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["simulate", "--chips", "64", "--learners", "4", "--mtbi-years", "never", "--hours", "1", "--step-s", "8"]
    asked += ["--parameters", "1M", "--sync-period", "12", "--stride", str(stride)]
    assert main([*asked, "--json"]) == 0
    rows = {row["system"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["elastic"]["bytes"] is None
    rounds = 450  # all four learners are in each, with bf16 up and fp32 down
    ends = 2 * stride  # but in the first, for which nobody is waited for; the last is under way when the hour is over
    for way, element_bytes in (("up", 2), ("down", 4)):
        each = 4 * element_bytes * 1e6 / 12
        assert rows["decoupled"]["bytes"][way] == pytest.approx(rounds * each, abs=ends * each)
    assert main(asked) == 0
    head, *_, last, told = capsys.readouterr().out.splitlines()
    assert (
        head.split()[-2:] == ["up", "down"]
        and last.split()[-1].endswith("B")
        and "1M parameters (--parameters)" in told
    )


def test_what_goes_on_in_a_row_is_told_and_changes_nothing() -> None:
    scenario, heard = Scenario(chips=300_000, learners=2, hours=0.5, stride=30), []
    assert run("decoupled", scenario, 1, passed=heard.append) == run("decoupled", scenario, 1)
    assert heard == sorted(heard) and heard[-1] == 1800.0 and len(heard) == 100
