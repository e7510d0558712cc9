"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.docs.regression import training
from tests.live.waiting import PATIENCE_S, until

import gruppetto
from gruppetto.launch.ask import fetch_model, fetch_status, find_endpoint

pytestmark = pytest.mark.live
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[str]:
    """The address of a real syncer, 30 rounds long."""
    (tmp_path / "RUN.toml").write_text("[run]\nrounds = 30\nsync_period = 4\nnum_fragments = 2\n")
    state = tmp_path / "state"
    command = [sys.executable, "-m", "gruppetto", "syncer", str(tmp_path / "RUN.toml")]
    process = subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--state", str(state)], cwd=tmp_path)
    try:
        until(lambda: find_endpoint(state) is not None)
        endpoint = find_endpoint(state)
        assert endpoint is not None
        yield endpoint.url
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def test_the_three_lines(syncer: str) -> None:
    block = re.search(r"```python\n(import gruppetto\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block is not None
    code = block.group(1).replace("http://127.0.0.1:7171", syncer)
    assert syncer in code
    names = training()
    model, batch = names["model"], next(names["loader"])
    first = model(**batch).loss.item()
    exec(compile(code, "README.md", "exec"), names)
    learner = names["learner"]
    assert isinstance(learner, gruppetto.Learner)
    assert learner.finished
    assert model(**batch).loss.item() < 0.1 * first
    weights = safetensors.torch.load(fetch_model(syncer, token=None).content)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), weights[name]), name
    status = fetch_status(syncer, token=None)
    assert status["round"] == 30
    assert status["tokens"]["merged"] > 0
