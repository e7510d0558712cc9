"""A small text, a small model, and everything made from them once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gruppetto.train.data import Data, open_data
from gruppetto.train.setting import DataSetting, InnerSetting, ModelSetting, TrainSetting

torch.set_num_threads(1)

MINI = ModelSetting(dim=32, layers=2, heads=2, ffn_dim=48, context=32)


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty thousand bytes of sentences with a grammar that is easy to learn and impossible to guess."""
    draw = random.Random(7)
    who = ["the rider", "a climber", "the café owner", "my sprinter", "the 山 goat"]
    does = ["follows", "waits for", "passes", "does not see"]
    text = ""
    while len(text.encode()) < 40_000:
        text += f"{draw.choice(who)} {draw.choice(does)} {draw.choice(who)}.\n"
    path = tmp_path_factory.mktemp("corpus") / "story.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def setting(story: Path) -> TrainSetting:
    return TrainSetting(
        model=MINI,
        data=DataSetting(corpus=f"text:{story}", slots=4),
        inner=InnerSetting(learning_rate=5e-3),
        batch_size=4,
        eval_every_rounds=20,
        eval_windows=40,
        log_every_rounds=5,
    )


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def data(setting: TrainSetting, cache: Path) -> Data:
    return open_data(setting, cache)


@pytest.fixture(scope="session")
def bpe_data(setting: TrainSetting, cache: Path) -> Data:
    return open_data(replace(setting, data=replace(setting.data, tokenizer="bpe:300")), cache)
