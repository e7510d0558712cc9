"""A step is AdamW on the clipped gradient of the batch, whether the batch comes whole or in parts."""

from __future__ import annotations

import copy

import pytest
import torch

from gruppetto.train.inner import adamw
from gruppetto.train.model import build
from gruppetto.train.setting import InnerSetting, ModelSetting
from gruppetto.train.step import backward, train_step, update

MINI = ModelSetting(dim=16, layers=1, heads=2, ffn_dim=24, context=8)


def batch(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 256, (rows, 8), generator=torch.Generator().manual_seed(seed))
    return ids, ids


def test_a_step_is_plain_adamw_on_clipped_gradients() -> None:
    ours = build(MINI, vocab_size=256)
    plain = copy.deepcopy(ours)
    optimizer = adamw(ours, InnerSetting())
    by_hand = adamw(plain, InnerSetting())
    for seed in range(3):
        result = train_step(ours, optimizer, batch(seed, 4), rate=0.01, clip_norm=0.5)
        loss = plain(*batch(seed, 4)).loss
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in plain.parameters() if p.grad is not None]).norm()
        for parameter in plain.parameters():
            assert parameter.grad is not None
            parameter.grad *= min(1.0, 0.5 / (float(norm) + 1e-6))
        for group in by_hand.param_groups:
            group["lr"] = 0.01
        by_hand.step()
        by_hand.zero_grad()
        assert result.loss == pytest.approx(float(loss.detach()))
        assert result.grad_norm == pytest.approx(float(norm), rel=1e-5)
        assert result.tokens == 32
        for mine, its in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
            assert mine.grad is None


def test_two_half_batches_make_a_whole_one() -> None:
    whole = build(MINI, vocab_size=256)
    halves = copy.deepcopy(whole)
    ids = batch(0, 4)[0]
    train_step(whole, adamw(whole, InnerSetting()), (ids, ids), rate=0.01, clip_norm=1.0)
    for half in ids.split(2):
        backward(halves, (half, half), share=0.5)
    update(halves, adamw(halves, InnerSetting()), rate=0.01, clip_norm=1.0)
    for mine, its in zip(whole.parameters(), halves.parameters(), strict=True):
        # AdamW's first step is a sign: where a gradient is almost nothing, rounding decides it.
        assert (mine - its).abs().mean().item() < 1e-4
