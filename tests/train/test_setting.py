"""Impossible settings are refused with the name of the field and the way out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gruppetto.errors import SettingError
from gruppetto.train.setting import (
    PRESETS,
    DataSetting,
    InnerSetting,
    ModelSetting,
    TrainSetting,
    bpe_size,
)


@pytest.mark.parametrize(
    ("kind", "values", "where"),
    [
        (ModelSetting, {"dim": 0}, "model.dim"),
        (ModelSetting, {"layers": -1}, "model.layers"),
        (ModelSetting, {"ffn_dim": 0}, "model.ffn_dim"),
        (ModelSetting, {"context": 1}, "model.context"),
        (ModelSetting, {"heads": 3}, "model.heads"),
        (ModelSetting, {"dim": 36, "heads": 4}, "model.heads"),  # heads of odd width cannot be rotated
        (ModelSetting, {"kv_heads": 3}, "model.kv_heads"),
        (ModelSetting, {"kv_heads": 0}, "model.kv_heads"),
        (ModelSetting, {"rope_theta": 0.0}, "model.rope_theta"),
        (ModelSetting, {"seed": -1}, "model.seed"),
        (ModelSetting, {"architecture": "rnn"}, "model.architecture"),
        (ModelSetting, {"architecture": "hf:"}, "model.architecture"),
        (DataSetting, {"corpus": "wikipedia"}, "data.corpus"),
        (DataSetting, {"corpus": "text:"}, "data.corpus"),
        (DataSetting, {"tokenizer": "words"}, "data.tokenizer"),
        (DataSetting, {"tokenizer": "bpe:256"}, "data.tokenizer"),
        (DataSetting, {"tokenizer": "bpe:many"}, "data.tokenizer"),
        (DataSetting, {"slots": 0}, "data.slots"),
        (InnerSetting, {"learning_rate": 0.0}, "inner.learning_rate"),
        (InnerSetting, {"learning_rate": float("nan")}, "inner.learning_rate"),
        (InnerSetting, {"beta2": 1.0}, "inner.beta2"),
        (InnerSetting, {"final_share": 1.5}, "inner.final_share"),
        (InnerSetting, {"weight_decay": -0.1}, "inner.weight_decay"),
        (InnerSetting, {"clip_norm": -1.0}, "inner.clip_norm"),
        (InnerSetting, {"warmup_rounds": -1}, "inner.warmup_rounds"),
        (TrainSetting, {"batch_size": 0}, "train.batch_size"),
        (TrainSetting, {"eval_every_rounds": 0}, "train.eval_every_rounds"),
        (TrainSetting, {"threads": 0}, "train.threads"),
        (TrainSetting, {"checkpoint_every_rounds": -1}, "train.checkpoint_every_rounds"),
        (TrainSetting, {"seed": 2**63}, "train.seed"),
    ],
)
def test_impossible_values_are_named(kind: Any, values: dict[str, Any], where: str) -> None:
    with pytest.raises(SettingError) as caught:
        kind(**values)
    assert caught.value.where == where
    assert caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:257", "bpe:4096"])
def test_tokenizer_names(tokenizer: str) -> None:
    size = bpe_size(tokenizer)
    assert tokenizer == ("bytes" if size is None else f"bpe:{size}")


def test_a_setting_survives_json() -> None:
    setting = TrainSetting(model=PRESETS["small"], batch_size=3).seeded(5)
    assert msgspec.json.decode(msgspec.json.encode(setting), type=TrainSetting) == setting
    assert (setting.seed, setting.model.seed) == (5, 5)
