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
from gruppetto.launch.children import start
from gruppetto.launch.local import MAX_JUDGES, _LocalRun
from gruppetto.runtime.clock import ManualClock
from gruppetto.trace.log import Record, TraceWriter, read_trace


class Status(BaseHTTPRequestHandler):
    phases: ClassVar[list[str]] = []
    """What is answered, one after the other; the last one again and again."""

    def do_GET(self) -> None:
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"round": 3, "phase": phase, "tokens": {"open": 0}}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> Iterator[_LocalRun]:
    """A run whose syncer answers, and whose one learner has ended well."""
    config = load_run(overrides={"run.num_learners": 1})
    local = _LocalRun(config, tmp_path, cache=tmp_path, clock=ManualClock(), show=lambda _: None)
    with HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        local._syncer = start("syncer", ["-c", "import os; os.read(0, 1)"], tmp_path / "syncer.log", threads=1)
        local._judge = start("judge", ["-c", "import os; os.read(0, 1)"], tmp_path / "judge.log", threads=1)
        local._learners["a"] = start("a", ["-c", ""], tmp_path / "a.log", threads=1)
        local._learners["a"].process.wait()
        (tmp_path / "syncer").mkdir()
        endpoint = {"url": f"http://127.0.0.1:{server.server_port}", "pid": local._syncer.process.pid}
        (tmp_path / "syncer" / "endpoint.json").write_text(json.dumps(endpoint), encoding="utf-8")
        yield local
        local.end()
        server.shutdown()


def test_a_run_that_finished_while_nobody_looked_has_not_failed(run: _LocalRun) -> None:
    # The newest status is from before the pause; all learners have left meanwhile.
    Status.phases = ["open", "finished"]
    run.ride()
    assert run._phase == "finished"


def test_a_run_without_learners_has_failed(run: _LocalRun) -> None:
    Status.phases = ["open"]
    with pytest.raises(RunFailed, match="no learner is left at round 3"):
        run.ride()


def test_a_judge_that_dies_is_replaced_but_not_for_ever(run: _LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def call() -> None:
        called.append(1)
        run._judges += 1
        run._judge = start("judge", ["-c", "raise SystemExit('no memory')"], run.directory / "judge.log", threads=1)
        run._judge.process.wait()

    monkeypatch.setattr(run, "_call_judge", call)
    Status.phases = ["finished"]
    assert run._judge is not None
    run._judge.process.kill()
    run._judge.process.wait()
    run._judges = 1
    # The run has reached its end, and is said to have; its weights were not judged, which is said too.
    assert "the last weights were not judged: the judge is failed (exit 1) at round 3: no memory" in run.finish()
    assert len(called) == MAX_JUDGES - 1


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
