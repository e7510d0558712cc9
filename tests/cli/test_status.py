"""What is left to say of a run whose syncer does not answer: for a moment, or for good."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.security.attacks.site_of_a_run import House, run, serving

from gruppetto.cli import checkpoint
from gruppetto.cli.__main__ import main
from gruppetto.cli.status import _text, status_of_directory
from gruppetto.cli.status_of_the_dead import status_of_report
from gruppetto.errors import ConnectionLost, DataError, StateError
from gruppetto.launch.deaths import note_death
from gruppetto.launch.place import held_directory
from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.actions import Drop, RoundClosed
from gruppetto.protocol.admission import ADVICE
from gruppetto.protocol.events import Published
from gruppetto.protocol.messages import Goodbye, Hello, RejectionReason
from gruppetto.protocol.units import Fragment, LearnerId, Round
from gruppetto.runtime.authority import Authority
from gruppetto.runtime.health import Observer, status_before_the_first_learner, status_of
from gruppetto.runtime.security.places import any_papers
from gruppetto.trace.log import TraceWriter

REPORT = {
    "rounds": 30,
    "wall_s": 60.0,
    "tokens": {"consumed": 100, "merged": 90, "discarded": 10, "lost": 0},
    "learners": {"ben": {"steps": 9, "state": "left"}},
    "recoveries": [{"learner": "ben", "cause": "killed", "source": "peer anna", "seconds": 9.0, "search_s": 1.5}],
    "alarms": [{"t": 3.0, "kind": "quorum-short", "text": "round 2 waits.", "over_t": 9.0}],
}


def test_an_ended_run_has_the_shape_of_a_living_one_and_its_recoveries(tmp_path: Path) -> None:
    living = status_before_the_first_learner(ProtocolSetting(), Observer(), run_id="r", epoch=1, now=1.0)
    for report in (REPORT, {}):
        status = status_of_report(
            tmp_path, report, {"learners": {"ben": {"pid": 7, "state": "done"}}}, ended=bool(report)
        )
        assert status.keys() >= living.keys()
        for table in ("tokens", "fragment_tokens", "quorum", "grace", "bytes"):
            assert status[table].keys() == living[table].keys(), table
    status = status_of_report(tmp_path, REPORT, {}, ended=True)
    (back,) = status["recoveries"]
    assert {key: back[key] for key in ("learner", "source", "donor", "seconds")} == {
        "learner": "ben",
        "source": "peer",
        "donor": "anna",
        "seconds": 1.5,
    }
    said = _text(status)
    assert "> ben began from peer anna (found in 1.5 s)" in said
    assert "over for 51.0 s: quorum-short, after 6.0 s: round 2 waits." in said


@pytest.mark.parametrize(
    "damage",
    [
        {"learners": {"ben": 1.5}},
        {"learners": None},
        {"learners": {"ben": {"clock": []}}},
        {"recoveries": None},
        {"recoveries": [{"learner": "ben"}]},
        {"alarms": [3]},
        {"alarms": [{"t": "soon", "kind": "went-back", "text": "x"}]},
        {"tokens": [1]},
        {"rounds": "many"},
    ],
)
def test_a_damaged_report_counts_as_none(
    damage: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "processes.json").write_text(json.dumps({"learners": {"ben": {"pid": 7, "state": "done"}}}))
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    assert main(["status", str(tmp_path)]) == 0
    assert "round 30, ended" in capsys.readouterr().out
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, **damage}))
    assert main(["status", str(tmp_path)]) == 0
    assert "round 0, stopped" in capsys.readouterr().out
    for wrong in ({"learners": 3}, {"learners": {"ben": 3}}, {"learners": {"ben": {"state": "done"}}}):
        (tmp_path / "processes.json").write_text(json.dumps(wrong))
        assert main(["status", str(tmp_path)]) == 2
        assert "holds no run" in capsys.readouterr().err


PROCESSES: dict[str, Any] = {
    "stage": "training",
    "syncer": {"pid": 1, "state": "restarting in 2 s", "restarts": 1},
    "standby": {"pid": 3, "state": "starting", "restarts": 0, "url": "http://h:2"},
    "learners": {"ben": {"pid": 7, "state": "running", "restarts": 2}},
}


def write(directory: Path, processes: dict[str, Any]) -> None:
    (directory / "processes.json").write_text(json.dumps(processes), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "phase", "waiting_for"),
    [
        ({}, "no syncer", "the syncer: restarting in 2 s; learners train on"),
        ({"syncer": {"pid": 1, "state": "running", "restarts": 1}}, "no syncer", "the syncer: not answering yet; lear"),
        ({"stage": "starting"}, "no syncer", "the syncer: restarting in 2 s"),
        ({"syncer": {}}, "starting", "its processes to be started"),
        ({"stage": "done"}, "ended", "its report"),
    ],
)
def test_a_run_whose_launcher_lives_has_not_stopped(
    changes: dict[str, Any], phase: str, waiting_for: str, tmp_path: Path
) -> None:
    write(tmp_path, {**PROCESSES, **changes})
    with held_directory(tmp_path):
        status = status_of_directory(tmp_path)
    assert status["phase"] == phase and status["waiting_for"].startswith(waiting_for)
    assert status["learners"]["ben"]["state"] == "running"
    assert "standby starting" in _text(status) and "2 restarts" in _text(status)


def test_a_run_that_is_prepared_is_one(tmp_path: Path) -> None:
    with held_directory(tmp_path):
        assert status_of_directory(tmp_path)["phase"] == "starting"
    with pytest.raises(DataError, match="holds no run"):
        status_of_directory(tmp_path)


def test_with_the_launcher_everybody_is_gone_and_it_is_said_how_to_go_on(tmp_path: Path) -> None:
    write(tmp_path, PROCESSES)
    status = status_of_directory(tmp_path)
    assert (status["phase"], status["waiting_for"]) == ("stopped", "nothing: the processes have ended")
    assert status["learners"]["ben"]["state"] == "gone" and "standby" not in status
    (tmp_path / "syncer" / "commits").mkdir(parents=True)
    (tmp_path / "syncer" / "commits" / "e00003-c000000721-t000000001417.commit").touch()
    assert status_of_directory(tmp_path)["waiting_for"].endswith(f"gruppetto resume {tmp_path}")


def test_who_has_died_is_said_while_the_run_goes_on_and_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, PROCESSES)
    for n in range(9):
        monkeypatch.setattr("gruppetto.launch.deaths.wall_time_s", lambda n=n: 1000.0 + n)
        note_death(tmp_path, float(n), f"number-{n}", -9)
    monkeypatch.setattr("gruppetto.cli.status_of_the_dead.wall_time_s", lambda: 1020.0)
    said = _text(status_of_directory(tmp_path))
    assert "x (3 more before)" in said and "x number-8 died (SIGKILL) 12.0 s ago" in said and "number-2" not in said
    told = {"cause": "SIGKILL", "t": 83.0, "round": 3, "merged_again_s": 21.5}
    deaths = [{**told, "process": "ben"}, {**told, "process": "syncer"}, {**told, "process": "al", "t": None}]
    said = _text(status_of_report(tmp_path, {**REPORT, "deaths": deaths}, {}, ended=True))
    assert "x ben died (SIGKILL) 1 min 23 s into the run; merged again 21.5 s later" in said
    assert "x syncer died (SIGKILL) 1 min 23 s into the run; a round again 21.5 s later" in said
    assert "x al died (SIGKILL); merged" in said


def test_a_run_is_watched_to_its_end_whatever_its_syncer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    living = status_before_the_first_learner(ProtocolSetting(), Observer(), run_id="r", epoch=1, now=1.0)
    told = iter([living, ConnectionLost("nobody answers"), living | {"round": 7}, living | {"phase": "finished"}])

    def fetch(*_: object, **__: object) -> dict[str, Any]:
        status = next(told)
        if isinstance(status, Exception):
            raise status
        return status

    monkeypatch.setattr("gruppetto.cli.status.fetch_status_of_all", fetch)
    monkeypatch.setattr("gruppetto.cli.status.WATCH_S", 0.0)
    assert main(["status", "http://127.0.0.1:9", "--watch"]) == 0
    said = capsys.readouterr()
    assert said.out.count("run r, round") == 3 and "round 7," in said.out
    assert "nobody answers" in said.err
    assert main(["status", "http://127.0.0.1:9", "--watch", "--json"]) == 2


def test_a_report_of_a_run_that_went_on_is_not_its_end(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"mode": "decoupled", "rounds": 3, "learners": {}}))
    with TraceWriter(tmp_path / "trace.jsonl", {}) as trace:
        for round in range(1, 6):
            trace.event(0.1 * round, "syncer", Published(round=Round(round)))
    status = status_of_directory(tmp_path)
    assert (status["round"], status["phase"]) == (5, "stopped")
    (tmp_path / "report.json").write_text(json.dumps({"mode": "decoupled", "rounds": 5, "learners": {}}))
    assert status_of_directory(tmp_path)["phase"] == "ended"
    # Of several shards the trace here is the first one's, and the report has the rounds that all have made.
    shards = {"mode": "decoupled", "rounds": 3, "learners": {}, "shards": [{"rounds": 5}, {"rounds": 3}]}
    (tmp_path / "report.json").write_text(json.dumps(shards))
    status = status_of_directory(tmp_path)
    assert (status["round"], status["phase"]) == (3, "ended")


def test_whose_rounds_they_are_is_said_where_several_syncers_serve_the_run() -> None:
    status = status_before_the_first_learner(ProtocolSetting(), Observer(), run_id="r", epoch=1, now=1.0)
    other = {"url": "http://b:1", "round": 7, "phase": "quorum", "waiting_for": "learners"}
    first, second = _text({**status, "round": 9, "shard": "1/2", "by_shard": {"2": other}}).splitlines()[:2]
    assert first.startswith("run r, shard 1/2 round 9, ") and second.startswith("  shard 2/2 round 7, quorum; ")


def test_why_somebody_has_left_or_is_not_merged_is_said_below_its_row(tmp_path: Path) -> None:
    core = SyncerCore(ProtocolSetting(min_quorum=1), run_id="r", layout_hash="l")
    seen = Observer()
    for name in ("anna", "ben"):
        core.step(0.0, Hello(learner=LearnerId(name), session=name, layout_hash="l", can_seed=True))
    refused = Drop(round=Round(9), fragment=Fragment(0), learner=LearnerId("anna"), reason=RejectionReason.NOT_FINITE)
    gone = replace(refused, learner=LearnerId("stranger"), reason=RejectionReason.UNKNOWN_LEARNER)
    for action in (*core.step(1.0, Goodbye(learner=LearnerId("ben"), incarnation=1)), refused, gone):
        seen.saw(1.0, action)
    seen.metrics[LearnerId("anna")] = {"loss": math.nan}
    status = status_of(core, seen, 2.0)
    anna, refusal, ben, left = _text(status).splitlines()[1:5]
    assert "anna" in anna and "loss not finite" in anna and "ben" in ben
    assert refusal == f"    not merged in round 9: not-finite, {ADVICE[RejectionReason.NOT_FINITE]}"
    assert left.startswith("    left: ")
    assert set(seen.rejections) == {"anna"}, "anybody may use a name that nobody has"
    seen.saw(3.0, RoundClosed(round=Round(9), why="", participants=(LearnerId("anna"),), live=1, grace_spent_s=0.0))
    assert "not merged in round" not in _text(status_of(core, seen, 4.0))


def test_alarms_that_held_to_the_end_are_over_with_the_run(tmp_path: Path) -> None:
    report = {**REPORT, "alarms": [{"t": 52.3, "kind": "diverges", "text": "the loss rose.", "over_t": None}]}
    said = _text(status_of_report(tmp_path, report, {}, ended=True))
    assert "over with the run: diverges, after 7.7 s: the loss rose." in said and "!" not in said


def test_a_syncer_that_has_taken_its_directory_and_does_not_listen_yet_is_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    authority.claim(0)
    for left_behind in ({}, {"url": "http://127.0.0.1:9", "pid": 1}):
        if left_behind:
            (tmp_path / "endpoint.json").write_text(json.dumps(left_behind))
        assert main(["status", str(tmp_path)]) == 0
        assert capsys.readouterr().out.startswith(f"starting; waiting for the syncer: it holds {tmp_path} and does not")
    authority.close()
    assert main(["status", str(tmp_path)]) == 2


@pytest.mark.parametrize("made", [0, 12, 30])
def test_so_it_is_where_its_trace_lies_beside_it(made: int, tmp_path: Path) -> None:
    state = tmp_path / "syncer"
    (state / "commits").mkdir(parents=True)
    if made:
        (state / "commits" / "e00001-c000000001-t000000000001.commit").touch()
    (state / "run.toml").write_text("[run]\nrounds = 30\n")
    authority = Authority(state)
    authority.claim(0)
    with TraceWriter(tmp_path / "trace.jsonl", {}):
        status = status_of_directory(tmp_path)
    assert status["phase"] == "starting" and status["waiting_for"].startswith(f"the syncer: it holds {state} ")
    authority.close()
    gone = status_of_report(tmp_path, {"rounds": made}, {}, ended=False)
    assert gone["phase"] == ("ended" if made == 30 else "stopped")


@pytest.mark.parametrize(("made", "phase"), [(12, "stopped"), (30, "ended")])
def test_of_a_syncer_that_was_started_by_hand_it_is_said_how_to_go_on_or_that_it_is_over(
    made: int, phase: str, tmp_path: Path
) -> None:
    state = tmp_path / "syncer"
    (state / "commits").mkdir(parents=True)
    (state / "commits" / "e00001-c000000001-t000000000001.commit").touch()
    (state / "run.toml").write_text("[run]\nrounds = 30\n")
    status = status_of_report(tmp_path, {"rounds": made}, {}, ended=False)
    assert status["phase"] == phase
    again = f"gruppetto syncer --state {state} --trace {tmp_path / 'trace.jsonl'}"
    assert status["waiting_for"].endswith(again if phase == "stopped" else "the run is finished")


def test_a_syncer_that_asks_for_papers_is_not_one_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house, elsewhere = House(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ca.pem").write_bytes((house.certs / "ca.pem").read_bytes())
    (elsewhere / "token").write_text("another-run's\n")
    (elsewhere / "token").chmod(0o600)
    state = tmp_path / "syncer"
    token = ("--certs", str(elsewhere), "--token-file", str(elsewhere / "token"))

    async def ask(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["status", *arguments])
        said = capsys.readouterr()
        assert "starting" not in said.out and said.err.count("\n") == (code != 0)
        return code, said.out + said.err

    async def body() -> None:
        async with serving(house):
            for directory in map(str, (tmp_path, state)):
                code, said = await ask(directory)
                assert code == 2 and "the syncer asks for papers: its certificate cannot be trusted" in said
                assert "give --certs DIR of an operator or viewer" in said
                code, said = await ask(directory, *token)
                assert code == 2 and "the syncer asks for papers: wants a token; give --token-file FILE, or" in said
                code, said = await ask(directory, "--certs", str(house.certs))
                assert code == 0 and said.startswith("run ")
                (state / "run.toml").write_text(f"[syncer]\ncerts = {str(house.certs)!r}\n")
                code, said = await ask(directory)
                assert code == 0 and said.startswith("run ")
                (state / "run.toml").write_text(f"[syncer]\ncerts = {str(elsewhere)!r}\n")  # without an operator's
                code, said = await ask(directory)
                assert code == 2 and "the syncer asks for papers: " in said
                (state / "run.toml").unlink()

    run(body())


def test_of_a_syncer_that_was_killed_the_address_is_somebody_elses(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    state = mine / "syncer"
    state.mkdir(parents=True)
    (state / "commits").mkdir()
    (state / "commits" / "e00001-c000000001-t000000000001.commit").touch()
    authority = Authority(state)
    authority.claim(0)
    authority.close()
    with TraceWriter(mine / "trace.jsonl", {}):
        pass
    house = House(tmp_path)

    async def body() -> None:
        async with serving(house) as site:
            (state / "endpoint.json").write_text(json.dumps({"url": site.url, "pid": 1}))
            tls = any_papers(house.certs).tls
            assert (await asyncio.to_thread(status_of_directory, mine, tls=tls))["phase"] == "stopped"
            with pytest.raises(StateError, match="no run goes on in it"):  # and it is sent no secret
                await asyncio.to_thread(checkpoint.main, [str(mine)])

    run(body())
