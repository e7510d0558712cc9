"""The launcher's decisions, with real processes that end as they are told, and a syncer that is a small server."""

from __future__ import annotations

import json
import logging
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from gruppetto.config import load_run
from gruppetto.errors import RunFailed
from gruppetto.launch.children import Child, start
from gruppetto.launch.judging import MAX_JUDGES
from gruppetto.launch.local import _LocalRun
from gruppetto.launch.strike import Strike
from gruppetto.runtime.clock import ManualClock
from gruppetto.trace.log import Record, TraceWriter, read_trace


class Status(BaseHTTPRequestHandler):
    phases: ClassVar[list[str]] = []
    """What is answered, one after the other; the last one again and again."""

    def do_GET(self) -> None:
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        self.send_response(200)
        self.end_headers()
        nobody = {"waiting_for": "", "learners": {}, "recoveries": []}
        self.wfile.write(json.dumps({"round": 3, "phase": phase, "tokens": {"open": 0}, **nobody}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> Iterator[_LocalRun]:
    """A run whose syncer answers, and whose one learner has ended well."""
    config = load_run(overrides={"run.num_learners": 1})
    local = _LocalRun(config, tmp_path, cache=tmp_path, clock=ManualClock(), show=lambda _: None)
    with HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        local._syncers.seats[0].child = syncer = start(
            "syncer", ["-c", "import os; os.read(0, 1)"], tmp_path / "syncer.log", threads=1
        )
        local._judging.child = start("judge", ["-c", "import os; os.read(0, 1)"], tmp_path / "judge.log", threads=1)
        local._learners.children["a"] = start("a", ["-c", ""], tmp_path / "a.log", threads=1)
        local._learners.children["a"].process.wait()
        (tmp_path / "syncer").mkdir()
        endpoint = {"url": f"http://127.0.0.1:{server.server_port}", "pid": syncer.process.pid}
        (tmp_path / "syncer" / "endpoint.json").write_text(json.dumps(endpoint), encoding="utf-8")
        yield local
        local.end()
        server.shutdown()


def test_a_run_that_finished_while_nobody_looked_has_not_failed(run: _LocalRun) -> None:
    # The newest status is from before the pause; all learners have left meanwhile.
    Status.phases = ["open", "finished"]
    run.ride()
    assert run._sight.phase == "finished"


def test_a_run_without_learners_has_failed(run: _LocalRun) -> None:
    Status.phases = ["open"]
    with pytest.raises(RunFailed, match="no learner is left at round 3"):
        run.ride()


def test_a_judge_that_dies_is_replaced_but_not_for_ever(run: _LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def call() -> None:
        called.append(1)
        judging.calls += 1
        judging.child = start("judge", ["-c", "raise SystemExit('no memory')"], run.directory / "judge.log", threads=1)
        judging.child.process.wait()

    judging = run._judging
    monkeypatch.setattr(judging, "call", call)
    Status.phases = ["finished"]
    assert judging.child is not None
    judging.child.process.kill()
    judging.child.process.wait()
    judging.calls = 1
    # The run has reached its end, and is said to have; its weights were not judged, which is said too.
    assert "the last weights were not judged: the judge is failed (exit 1) at round 3: no memory" in run.finish()
    assert len(called) == MAX_JUDGES - 1


# ── starting again ───────────────────────────────────────────────────────────────────────────────────────────────


def revive(run: _LocalRun, monkeypatch: pytest.MonkeyPatch, code: str) -> list[str]:
    """A learner "b" that runs ``code`` in every life; the list of its lives."""
    lives: list[str] = []

    def begin(name: str) -> None:
        lives.append(name)
        run._learners.children[name] = start(name, ["-c", code], run.directory / f"{name}.log", threads=1)
        run._learners.children[name].process.wait()

    monkeypatch.setattr(run._learners, "begin", begin)
    begin("b")
    return lives


def pass_time(run: _LocalRun, seconds: float) -> None:
    assert isinstance(run._clock, ManualClock)
    run._clock.advance(seconds)
    run._mend()


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def test_a_learner_that_dies_is_started_again_after_a_pause(run: _LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    Status.phases = ["open"]
    lives = revive(run, monkeypatch, KILLED)
    pass_time(run, 0.0)
    run._write_processes()
    assert run._sight.processes["b"]["state"] == "restarting in 1 s"
    assert run._learners.riding(run._sight)
    pass_time(run, 0.4)
    assert lives == ["b"]
    pass_time(run, 0.1)
    run._write_processes()
    assert (lives, run._sight.processes["b"]["restarts"]) == (["b", "b"], 1)


def test_one_that_never_takes_part_is_given_up(
    run: _LocalRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Status.phases = ["open"]
    lives = revive(run, monkeypatch, "raise SystemExit(1)")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            pass_time(run, 60.0)
    assert len(lives) == run.config.launch.max_restarts
    assert "b died (exit 1): it died 5 times without having taken part" in caplog.text
    assert not run._learners.riding(run._sight)


@pytest.mark.parametrize(
    ("code", "phase"), [("raise SystemExit(2)", "open"), ("", "open"), (KILLED, "finished")], ids=str
)
def test_who_makes_a_mistake_has_left_or_is_late_is_not_started(
    run: _LocalRun, monkeypatch: pytest.MonkeyPatch, code: str, phase: str
) -> None:
    Status.phases = [phase]
    lives = revive(run, monkeypatch, code)
    for _ in range(3):
        pass_time(run, 60.0)
    assert lives == ["b"] and not run._learners.riding(run._sight)


def test_a_syncer_is_started_again_where_it_listened(run: _LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    Status.phases = ["open"]
    run._ask()
    pass_time(run, 0.0)  # it has been of use
    endpoint = json.loads((run.directory / "syncer" / "endpoint.json").read_bytes())
    commands: list[list[str]] = []

    def begin(name: str, command: list[str], log: Path, *, threads: int) -> Child:
        commands.append(command)
        return start(name, ["-c", "import os; os.read(0, 1)"], log, threads=threads)

    monkeypatch.setattr("gruppetto.launch.engine.start", begin)
    (syncer,) = run._syncers.children()
    syncer.process.kill()
    syncer.process.wait()
    pass_time(run, 0.0)
    pass_time(run, 0.5)
    (command,) = commands
    assert command[command.index("--listen") + 1] == endpoint["url"].removeprefix("http://")
    assert "--standby" not in command
    assert run._syncers.first.running


def test_without_restarts_a_dead_syncer_ends_the_run(tmp_path: Path) -> None:
    config = load_run(overrides={"run.num_learners": 1, "launch.restart": False})
    run = _LocalRun(config, tmp_path, cache=tmp_path, clock=ManualClock(), show=lambda _: None)
    run._syncers.seats[0].child = syncer = start("syncer", ["-c", KILLED], tmp_path / "syncer.log", threads=1)
    syncer.process.wait()
    with pytest.raises(RunFailed, match=r"the syncer is killed \(SIGKILL\) at round 0"):
        run._mend()
    run.end()


def test_deaths_end_in_the_trace(run: _LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    Status.phases = ["open"]
    TraceWriter(run.directory / "trace.jsonl", {}).close()
    revive(run, monkeypatch, KILLED)
    pass_time(run, 0.0)
    run.end()
    notes = [line for line in read_trace(run.directory / "trace.jsonl") if isinstance(line, Record)]
    assert [(n.name, n.data["learner"], n.data["cause"]) for n in notes] == [("died", "b", "SIGKILL")]
    assert not (run.directory / "deaths.jsonl").exists()


def test_a_strike_comes_once_from_outside(run: _LocalRun) -> None:
    run._learners.children["b"] = start("b", ["-c", "import os; os.read(0, 1)"], run.directory / "b.log", threads=1)
    run._learners.strike = Strike(learner="b", round=3)
    run._learners.strike_if_due(run._sight.round)
    assert run._learners.children["b"].running  # round 3 is not known yet
    Status.phases = ["open"]
    run._ask()
    run._learners.strike_if_due(run._sight.round)
    run._learners.children["b"].process.wait()
    assert run._learners.children["b"].state == "killed (SIGKILL)"
    assert run._learners.strike is None


# ── notes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluated(place: Path) -> None:
    TraceWriter(place / "trace.jsonl", {}).close()
    with TraceWriter(place / "evaluation.jsonl", {}) as notes:
        notes.note(1.0, "judge", "evaluation", round=0, loss=4.0, perplexity=54.6)


def test_evaluations_end_in_the_trace(run: _LocalRun) -> None:
    evaluated(run.directory)
    run.end()
    lines = read_trace(run.directory / "trace.jsonl")
    assert [line.name for line in lines if isinstance(line, Record)] == ["evaluation"]
    assert not (run.directory / "evaluation.jsonl").exists()


def test_evaluations_outlive_a_disk_that_is_full(run: _LocalRun, caplog: pytest.LogCaptureFixture) -> None:
    evaluated(run.directory)
    kept = (run.directory / "evaluation.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((run.directory / "trace.jsonl").stat().st_size, limits[1]))
    try:
        for _ in range(3):
            run._write_processes()
        run.end()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (run.directory / "evaluation.jsonl").read_bytes() == kept
    assert sorted(r.name for r in caplog.records) == ["gruppetto.launch", "gruppetto.trace"]


def test_evaluations_that_cannot_be_read_hide_no_other_error(run: _LocalRun, caplog: pytest.LogCaptureFixture) -> None:
    evaluated(run.directory)
    (run.directory / "evaluation.jsonl").write_text("[]\n", encoding="utf-8")
    Status.phases = ["open"]
    with caplog.at_level(logging.WARNING):
        run.end()
    assert "the evaluations stay in" in caplog.text
    assert (run.directory / "evaluation.jsonl").read_text(encoding="utf-8") == "[]\n"
