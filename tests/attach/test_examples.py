"""Every example rides a short run to its end: its model then holds the run's weights. What it shows is what it says."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch

from gruppetto.attach.sharding import plain_name
from gruppetto.launch.ask import fetch_model, fetch_status

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"hf_trainer": ["transformers"], "trl_sft": ["trl", "peft"], "accelerate_loop": ["accelerate"]}
NEEDS["lightning_fit"] = ["lightning"]
ROUNDS = 6


def load(path: Path) -> ModuleType:
    for package in NEEDS.get(path.stem, []):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("plain_loop", []),
        ("own_data", ["--tokens={tmp}/train.bin"]),
        ("vit", []),
        ("hf_trainer", ["--out={tmp}/out"]),
        ("trl_sft", ["--out={tmp}/out", "--model={tmp}/model"]),
        ("trl_sft", ["--out={tmp}/out", "--model={tmp}/model", "--lora"]),
        ("accelerate_loop", []),
        ("lightning_fit", []),
    ],
)
def test_an_example_rides_to_the_end(
    syncer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, flags: list[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    example = load(ROOT / "examples" / f"{name}.py")
    running = syncer(rounds=ROUNDS, num_fragments=2, sync_period=2, overlap_steps=1)
    with torch.random.fork_rng():
        model = example.main(["--syncer", running.url, "--name", "a", *(flag.format(tmp=tmp_path) for flag in flags)])
    status = fetch_status(running.url)
    assert status["round"] == ROUNDS
    assert status["tokens"]["merged"] > 0
    weights = safetensors.torch.load(fetch_model(running.url, token=None).content)
    trained = {plain_name(key): p for key, p in model.named_parameters() if p.requires_grad}
    assert set(weights) == set(trained)
    for key, value in trained.items():
        assert torch.equal(value.detach(), weights[key]), key


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_its_lines_are_as_few_as_the_page_says(path: Path) -> None:
    text = path.read_text()
    marks = [int(mark) for mark in re.findall(r"  # (\d)$", text, re.M)]
    assert marks == list(range(1, len(marks) + 1)) != []
    assert len(text.splitlines()) <= 80
    assert f"examples/{path.name}) | {len(marks)} |" in (ROOT / "docs" / "attach.md").read_text()
