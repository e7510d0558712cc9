"""What is left to say of a run when nothing of it runs any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.cli.status import _text
from gruppetto.cli.status_of_the_dead import status_of_report
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.health import Observer, status_before_the_first_learner

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
        status = status_of_report(tmp_path, report, {"ben": {"pid": 7, "state": "done"}}, ended=bool(report))
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
    assert "over since 51.0 s, after 6.0 s: round 2 waits." in said


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
