"""The file to copy for a question of one's own does what it says."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "experiments" / "own_question.py"


def test_a_question_of_ones_own_has_an_answer(
    story: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(FILE.stem, FILE)
    assert spec is not None and spec.loader is not None
    own = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own)
    flags = [f"--corpus=text:{story}", f"--cache={cache}", f"--out={tmp_path / 'own.png'}", "--rounds=12", "--seeds=1"]
    losses = own.main(flags)
    assert len(losses) == 1 + len(own.ARMS) and "data parallel" in losses
    assert all(0 < loss < math.log(256) for (loss,) in losses.values())
    said = capsys.readouterr().out.splitlines()
    assert said[2].startswith("| data parallel | ") and len(said) == 2 + len(losses)
    assert (tmp_path / "own.png").stat().st_size > 1000
