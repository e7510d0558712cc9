"""What ``gruppetto status`` says of a syncer that lives, and of the state directory that it leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gruppetto
from gruppetto.cli.__main__ import main


def shape(value: Any) -> Any:
    """The keys, all the way down."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return None


def test_a_dead_syncer_is_told_in_the_shape_of_a_living_one_and_how_to_start_it(
    syncer: Callable[..., Any], toy: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service, model = syncer(num_fragments=2, sync_period=2, overlap_steps=1), toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = tmp_path / "state-0"
    with gruppetto.Learner(model, optimizer, syncer=state, name="a", tokens_per_step=16, quiet=True) as learner:
        for step in range(2000):
            optimizer.zero_grad()
            model(*model.batch(step)).backward()
            optimizer.step()
            if learner.round >= 4:
                break
        assert main(["status", service.url, "--json"]) == 0
        alive = json.loads(capsys.readouterr().out)
    service.stop()
    assert main(["status", str(state), "--json"]) == 0
    dead = json.loads(capsys.readouterr().out)
    assert not alive.keys() - dead.keys()
    assert shape(dead["learners"]["a"]) == shape({**alive["learners"]["a"], "metrics": {}, "last_rejection": None})
    assert (dead["run_id"], dead["phase"]) == (alive["run_id"], "stopped") and dead["round"] >= 4
    assert dead["tokens"]["consumed"] >= alive["tokens"]["consumed"] > 0
    assert main(["status", str(state)]) == 0
    said = capsys.readouterr().out
    begin = re.escape(f"run {alive['run_id']}, round {dead['round']}, stopped since ")
    assert re.match(begin + r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d;", said)
    assert f"gruppetto syncer --state {state}" in said
    # A state knows of no steps and merges: it does not say that there were none.
    assert dead["learners"]["a"]["clock"] is None and "yet" not in said
    assert main(["report", str(state)]) == 2
    assert "has the state of a syncer and no trace.jsonl" in capsys.readouterr().err
