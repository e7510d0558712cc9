"""The learning rate of a round, and what AdamW shrinks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.train.inner import adamw, learning_rate, set_learning_rate
from gruppetto.train.model import build
from gruppetto.train.setting import InnerSetting, ModelSetting

SETTING = InnerSetting(learning_rate=0.01, warmup_rounds=20, final_share=0.1)


@given(total=st.integers(1, 5000))
def test_the_rate_rises_then_falls_within_its_bounds(total: int) -> None:
    rates = [learning_rate(SETTING, round, total) for round in range(total + 1)]
    top = rates.index(max(rates))
    assert top <= max(1, total // 10)
    assert all(a <= b for a, b in pairwise(rates[: top + 1]))
    assert all(a >= b for a, b in pairwise(rates[top:]))
    assert min(rates) > 0
    assert max(rates) == pytest.approx(0.01)
    assert rates[-1] == pytest.approx(0.001)
    assert learning_rate(SETTING, total + 100, total) == rates[-1]


def test_only_matrices_decay_and_all_are_trained() -> None:
    model = build(ModelSetting(), vocab_size=256)
    optimizer = adamw(model, InnerSetting(weight_decay=0.3))
    decay = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {p.ndim: d for p, d in decay.items()} == {2: 0.3, 1: 0.0}
    assert set(decay) == set(model.parameters())
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
