"""``gruppetto export``: what it refuses. What it writes: tests/live/test_local_run.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.served import Quiet, served

from gruppetto.cli.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "gruppetto export: 0 arguments where one RUNDIR, STATE or URL is needed"),
        (["nowhere"], "nowhere: no such directory; name a run directory"),
        (["run", "--format", "onnx"], "--format: is 'onnx'; use one of hf, safetensors"),
        (["http://127.0.0.1:9"], "--out: is missing; say where to write it"),
        (["run"], "run/model: is there already; give --out PATH, or take that"),
        (["run", "--format", "safetensors"], "run/syncer: holds no run; name the state directory of one"),
        (["run", "--format", "safetensors", "--out", "hollow"], "hollow: is there already; give --out PATH"),
        (["empty"], "empty: holds no run; name the state directory of one"),
        (
            ["rival"],
            "rival: is a rival's run, which has no syncer; its last weights are in rival/model",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run/model/config.json", "rival/plan.json", "empty/notes"):
        Path(name).parent.mkdir(parents=True)
        Path(name).touch()
    Path("hollow").mkdir()
    Path("run/run.toml").write_text("[run]\nrounds = 9\n", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"gruppetto: {says}")
    assert sorted(tmp_path.rglob("*")) == before


class Strange(Quiet):
    """Answers like a syncer, but for its weights."""

    def do_GET(self) -> None:
        status = b'{"round": 7, "phase": "grace", "waiting_for": "answers", "learners": {}, "recoveries": []}'
        body = {"/v1/status": status, "/v1/model": bytes(100)}[self.path]
        self.send_response(200)
        self.send_header("Gruppetto-Round", "7")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def strange() -> Iterator[str]:
    with served(Strange) as address:
        yield address


def test_what_is_no_weights_is_not_passed_on(strange: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", strange, "--format", "safetensors", "--out", str(tmp_path / "a.safetensors")]) == 2
    assert capsys.readouterr().err.startswith(f"gruppetto: {strange}: gives no weights that can be read (")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["export", "resume"])
@pytest.mark.parametrize("torn", ['{"trace"', '{"trace":1,"started_at":1796'])
def test_a_trace_that_was_torn_within_its_first_line_is_no_traceback(
    verb: str, torn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text("[run]\nrounds = 9\n", encoding="utf-8")
    (tmp_path / "trace.jsonl").write_text(torn, encoding="utf-8")
    assert main([verb, str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("gruppetto: ") and told.count("\n") == 1
