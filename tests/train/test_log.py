"""Every record is one line of strict JSON, whoever else writes to the file."""

from __future__ import annotations

import json
from pathlib import Path

from gruppetto.train.log import TrainLog


def test_records_are_lines_with_the_time_since_the_start(tmp_path: Path) -> None:
    times = iter([10.0, 10.5, 12.00049])
    path = tmp_path / "run" / "train.jsonl"
    with TrainLog(path, lambda: next(times)) as log:
        log.write("train", who="learner-0", round=1, step=2, tokens=3, loss=4.5, grad_norm=0.1)
        log.write("end", who="learner-0", round=1, step=2, tokens=3, loss=float("nan"))
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"v": 1, "t": 0.5, "kind": "train", "who": "learner-0", "round": 1, "step": 2, "tokens": 3}
        | {"loss": 4.5, "grad_norm": 0.1},
        {"v": 1, "t": 2.0, "kind": "end", "who": "learner-0", "round": 1, "step": 2, "tokens": 3} | {"loss": None},
    ]


def test_two_writers_share_a_file_and_a_start(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    with (
        TrainLog(path, lambda: 7.0, started=5.0) as first,
        TrainLog(path, lambda: 9.0, started=5.0) as second,
    ):
        for _ in range(2):
            first.write("eval", who="learner-0", round=0, step=0, tokens=0, loss=1.0)
            second.write("eval", who="learner-1", round=0, step=0, tokens=0, loss=1.0)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["who"], record["t"]) for record in records] == [("learner-0", 2.0), ("learner-1", 4.0)] * 2
