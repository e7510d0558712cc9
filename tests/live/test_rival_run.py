"""What decoupled training is measured against, by ``gruppetto train --mode``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main

pytestmark = pytest.mark.live

SIZES = ("dim=16", "layers=1", "heads=2", "context=32")


def test_a_rival_is_run_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("the rider follows the wheel of the one ahead. " * 400, encoding="utf-8")
    given = [word for size in SIZES for word in ("--set", f"model.{size}")]
    given += ["--set", f"data.corpus=text:{tmp_path}/text.txt", "--cache", str(tmp_path), "--json"]
    assert main(["train", "--mode", "single", "--rounds", "3", "--out", str(tmp_path / "run"), *given]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["rounds"] == 3 and report["eval"]["loss"] < report["eval"]["curve"][0][1]
