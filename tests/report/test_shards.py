"""The report of a run that several syncers served, from the traces of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.units import Epoch
from gruppetto.report import write_report
from gruppetto.report.deaths import about_deaths
from gruppetto.report.summary import summary_of_run
from gruppetto.report.traces import shard_of
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.measures import Alarmed, Death, LearnerMeasures, Measures, Recovery, RoundMeasures
from gruppetto.trace.replay import Difference, ReplayResult
from gruppetto.trace.schema import core_header
from gruppetto.trace.together import together

KILLED = Recovery(learner="anna", cause="killed", source="syncer", seconds=3.0)
RESTARTED = Recovery(learner="anna", cause="the syncer restarted", source="own memory", seconds=2.0)


def shard(name: str, *, began: float | None, rounds: int, up: int, consumed: int, **more: object) -> Measures:
    """One fragment and one learner, who trains ten tokens a second; round n closes at second n, and merges all."""
    seconds = float(rounds)
    made = {
        n: RoundMeasures(
            round=n,
            asked_at=n - 0.5,
            quorum_s=0.5,
            grace_s=0.0,
            due=1,
            at_clock=1,
            live=1,
            participants=("anna",),
            closed_at=float(n),
            done_at=float(n),
        )
        for n in range(1, rounds + 1)
    }
    anna = LearnerMeasures(
        steps=rounds, spent_s=seconds, useful_s=seconds, lives=1, first_live=0.0, states=[(0.0, "live")]
    )
    return Measures(
        shard=name,
        header={"numel": 100},
        rounds=made,
        learners={"anna": replace(anna, busy=[(0.0, seconds)])},
        tokens={"consumed": consumed, "merged": consumed, "discarded": 0, "lost": 0},
        fragment_tokens={"merged": consumed},
        num_fragments=1,
        consumed_by={"anna": consumed},
        began_wall_s=began,
        begun_at=0.0,
        ended_at=seconds,
        wall_s=seconds,
        up_bytes=up,
        down_bytes=2 * up,
        rejected={"late": 1},
        replay=ReplayResult(events=1, decisions=1, lives=1, first_difference=None),
        **more,  # type: ignore[arg-type]
    )


def test_what_each_tells_of_its_own_adds_up_and_what_all_tell_counts_once() -> None:
    first = shard("1/2", began=1000.0, rounds=9, up=10, consumed=90)
    second = shard("2/2", began=1002.0, rounds=7, up=20, consumed=70)  # the first two seconds were not told to it
    report = summary_of_run(together([first, second]))
    assert report["bytes"] == {"up": 30, "down": 60, "data_parallel_equivalent": 0}
    assert report["rejected"] == {"late": 2}
    assert (report["rounds"], report["training_s"], report["goodput"]) == (7, 9.0, 1.0)
    assert report["learners"]["anna"] | {"step_s": 1.0} == {
        "steps": 9,
        "tokens": 90,
        "merged_rounds": 9,
        "step_s": 1.0,
        "lives": 1,
        "state": "live",
    }
    # 90 in two fragments; the second shard has made nothing of the 20 that it never heard of.
    assert report["tokens"] == {"consumed": 90, "merged": 80, "discarded": 0, "lost": 10}
    assert [each["tokens"]["merged"] for each in report["shards"]] == [90, 70]
    going_on = together([first, replace(second, ended_at=None)])
    assert not summary_of_run(going_on)["finished"] and going_on.tokens["open"] == 10, "it may still hear of them"


def test_whose_books_have_forgotten_names_counts_nobody_twice() -> None:
    first = shard("1/2", began=None, rounds=9, up=1, consumed=90)
    second = replace(
        first, shard="2/2", consumed_by={}, learners={}
    )  # the same ninety, by one who is not named any more
    assert together([first, second]).tokens["consumed"] == 90


@pytest.mark.parametrize("began", [1002.0, None])
def test_times_are_of_one_clock_where_both_are_known(began: float | None) -> None:
    said = Alarmed(t=1.0, kind="quorum-short", text="round 1 waits", over_t=1.5)
    first = shard("1/2", began=1000.0, rounds=9, up=1, consumed=90)
    whole = together([first, shard("2/2", began=began, rounds=9, up=1, consumed=90, alarms=[said])])
    later_s = 2.0 if began else 0.0
    assert whole.alarms == [
        Alarmed(t=1.0 + later_s, kind="quorum-short", text="shard 2/2: round 1 waits", over_t=1.5 + later_s)
    ]
    assert whole.ended_at == 9.0 + later_s and whole.shards[1].rounds[1].closed_at == 1.0 + later_s


def test_one_death_is_told_once_and_the_restart_of_a_shard_is_its_own() -> None:
    first = shard("1/2", began=1000.0, rounds=9, up=1, consumed=90, recoveries=[KILLED, KILLED])
    second = shard("2/2", began=1000.0, rounds=9, up=1, consumed=90, recoveries=[RESTARTED, KILLED])
    told = together([first, second]).recoveries
    assert [recovery.cause for recovery in told] == ["killed", "killed", "shard 2/2 restarted"]


def test_a_shard_that_dies_is_back_when_it_closes_a_round_of_its_own() -> None:
    dead = [Death(process="syncer-2", cause="SIGKILL", wall_s=1004.25), Death(process="anna", cause="x", wall_s=1001.5)]
    first = shard("1/2", began=1000.0, rounds=9, up=1, consumed=90, deaths=dead)
    second = shard("2/2", began=1000.0, rounds=9, up=1, consumed=90)
    for n in (5, 6):
        second.rounds.pop(n)
    report = summary_of_run(together([first, second]))
    _, of_the_shard = about_deaths(report)
    assert of_the_shard.startswith(
        "syncer-2 died (SIGKILL) 4.2 s into the run, at round 4; only its own fragments waited for it, in rounds of "
        "their own, of which it closed the next 2.8 s later;"
    )


def test_a_check_that_fails_in_one_trace_is_said_with_its_name() -> None:
    first = shard("1/2", began=None, rounds=1, up=1, consumed=10)
    wrong = ReplayResult(
        events=1, decisions=1, lives=1, first_difference=Difference(line=7, t=0.5, recorded="this", replayed="that")
    )
    second = replace(first, shard="2/2", replay=wrong, recorded_tokens=first.tokens)
    checks = summary_of_run(together([first, second]))["checks"]
    assert checks["replay"].startswith("shard 2/2: ") and "this" in checks["replay"]
    assert checks["ledger_balances"] == "ok" and checks["ledger_agrees"] == "not recorded"


def test_a_directory_with_the_traces_of_some_shards_says_whose_are_missing(tmp_path: Path) -> None:
    for name, epoch, up in (("trace", 1, 1000), ("trace-3", 4, 500)):
        header = core_header(ProtocolSetting(num_fragments=2), run_id="r", layout_hash="l", epoch=Epoch(epoch))
        with TraceWriter(tmp_path / f"{name}.jsonl", {**header, "numel": 100}) as trace:
            trace.note(1.0, "syncer", "traffic", round=0, up=up, down=0, malformed=0)
    (tmp_path / "trace-2.jsonl").touch()
    (tmp_path / "trace-calm.jsonl").touch()  # somebody else's
    (tmp_path / "run.toml").write_text("[syncer]\nshards = 4\n")
    report = write_report(tmp_path)
    assert [each["shard"] for each in report.figures["shards"]] == ["1/4", "3/4"]
    assert report.figures["bytes"]["up"] == 1500
    assert "2 shards served it: 1/4 made 0 rounds of 2 fragments, nothing merged, 1.00 kB; 3/4" in report.text
    assert "There is no trace of shard 2/4, 4/4: rounds, tokens and bytes are without it." in report.text
    assert [shard_of(tmp_path / f"{name}.jsonl") for name in ("trace", "trace-3", "trace-calm")] == ["1/3", "3/3", ""]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h2>Shards</h2>" in page and "<td>3/4</td>" in page
    for name in ("trace-2.jsonl", "trace-3.jsonl", "run.toml"):
        (tmp_path / name).unlink()
    alone = write_report(tmp_path)
    assert alone.figures["shards"] == [] and "shard" not in alone.text
    assert "<h2>Shards</h2>" not in (tmp_path / "report.html").read_text(encoding="utf-8")
