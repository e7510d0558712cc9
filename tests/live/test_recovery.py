"""A learner of a real run is killed and started again: it is useful within seconds, with a peer's state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.waiting import until_round

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TINY = [
    *("--set", "model.dim=32", "--set", "model.layers=2", "--set", "model.ffn_dim=64", "--set", "model.heads=2"),
    *("--set", "run.num_fragments=6", "--set", "run.sync_period=6", "--set", "train.checkpoint_every_rounds=10"),
    *("--set", "train.eval_every_rounds=100", "--set", "train.eval_windows=16"),
]
PADDED = "\n".join(f'[[learner]]\nname = "{name}"\nslowdown = 6.0' for name in ("a", "b", "c"))


def test_a_killed_learner_comes_back_with_the_state_of_a_peer(tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").write_text(PADDED, encoding="utf-8")
    directory = tmp_path / "run"
    train = subprocess.Popen(
        [
            *(sys.executable, "-m", "gruppetto", "train", str(tmp_path / "RUN.toml"), *TINY),
            *("--rounds", "300", "--out", str(directory), "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        seen = until_round(directory, 15, train)
        os.kill(seen["learners"]["b"]["pid"], signal.SIGKILL)
        out, errors = train.communicate()  # the launcher starts it again by itself
        assert train.returncode == 0, errors
    finally:
        if train.poll() is None:
            train.kill()
            train.communicate()
    report = json.loads(out)
    (recovery,) = [r for r in report["recoveries"] if r["learner"] == "b"]
    assert recovery["cause"] == "killed"
    assert recovery["source"] in ("peer a", "peer c")
    assert 0 < recovery["search_s"] < recovery["seconds"] < 60
    assert report["learners"]["b"]["lives"] == 2
    assert report["checks"] == {"replay": "ok", "ledger_balances": "ok", "ledger_agrees": "ok"}
    assert "Recoveries" in (directory / "report.html").read_text()
    saved = list((directory / "learners" / "a" / "checkpoints").glob("round-*/learner.json"))
    assert 1 <= len(saved) <= 2, "every ten rounds one, of which two are kept"
