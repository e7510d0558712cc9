"""The vision transformer: images come as windows, and it learns to tell them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gruppetto.errors import SettingError
from gruppetto.train.data import open_data
from gruppetto.train.inner import adamw
from gruppetto.train.model import build
from gruppetto.train.setting import InnerSetting, ModelSetting, TrainSetting
from gruppetto.train.step import train_step

VIT = ModelSetting(architecture="vit", dim=16, layers=1, heads=2, ffn_dim=32, context=28 * 28 + 1)


def bars(count: int, seed: int) -> torch.Tensor:
    """Images that are bright in one tenth of their rows, which is the label."""
    rng = np.random.default_rng(seed)
    windows = rng.integers(0, 60, (count, 28 * 28 + 1))
    for window in windows:
        window[-1] = rng.integers(10)
        rows = window[:-1].reshape(28, 28)
        rows[int(2.8 * window[-1]) : int(2.8 * (window[-1] + 1))] += 150
    return torch.from_numpy(windows)


def test_it_learns_to_tell_images_apart() -> None:
    model, inner = build(VIT, 256), InnerSetting(learning_rate=3e-3)
    optimizer, held_out = adamw(model, inner), bars(200, seed=1)
    for step in range(60):
        batch = bars(32, seed=100 + step)
        train_step(model, optimizer, (batch, batch), rate=1e-2, clip_norm=1.0)
    with torch.no_grad():
        found = model(held_out, labels=held_out)
    assert found.logits.shape == (200, 10)
    assert float((found.logits.argmax(-1) == held_out[:, -1]).float().mean()) > 0.6


def test_the_label_is_not_seen() -> None:
    model, windows = build(VIT, 256), bars(4, seed=0)
    relabelled = windows.clone()
    relabelled[:, -1] = (relabelled[:, -1] + 1) % 10
    assert torch.equal(model(windows).logits, model(relabelled).logits)
    assert not torch.equal(model(windows, labels=windows).loss, model(windows, labels=relabelled).loss)


def test_the_same_seed_gives_the_same_model() -> None:
    one, same, other = build(VIT, 256), build(VIT, 256), build(replace(VIT, seed=1), 256)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.head.weight, other.head.weight)  # type: ignore[union-attr]


def test_it_reads_images_only(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="use 785"):
        replace(VIT, context=64)
    with pytest.raises(SettingError, match="a corpus is text"):
        open_data(TrainSetting(model=VIT), tmp_path)
