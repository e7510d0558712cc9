"""Models are built from a setting alone, ours and those of transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config

from gruppetto.errors import SettingError
from gruppetto.train.model import PRESETS, build, num_parameters
from gruppetto.train.setting import ModelSetting

MINI = ModelSetting(dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=48, context=16)


@pytest.mark.parametrize("architecture", ["llama", "hf:qwen3", "hf:mixtral", "hf:gpt2"])
def test_the_seed_alone_decides_the_weights(architecture: str) -> None:
    setting = replace(MINI, architecture=architecture)
    before = torch.random.get_rng_state()
    first = build(setting, vocab_size=256)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    again, other = build(setting, vocab_size=256), build(replace(setting, seed=1), vocab_size=256)
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert bool(weights[0].isfinite().all())


@pytest.mark.parametrize("architecture", ["llama", "hf:qwen3", "hf:mixtral", "hf:gpt2"])
def test_every_model_is_called_alike(architecture: str) -> None:
    model = build(replace(MINI, architecture=architecture), vocab_size=256)
    ids = torch.arange(32).view(2, 16)
    found = model(ids, labels=ids)
    assert found.logits.shape == (2, 16, 256)
    # A fresh model knows nothing: the loss of a uniform guess, and what logits of spread 1/2 add to it by chance.
    assert abs(found.loss.item() - math.log(256)) < 0.5
    # Nothing random is left in a training step.
    assert torch.equal(model(ids).logits, found.logits)


def test_presets_have_the_sizes_they_promise() -> None:
    sizes = {name: num_parameters(build(setting, vocab_size=256)) for name, setting in PRESETS.items()}
    assert sizes == {"tiny": 217_664, "small": 885_888, "base": 9_999_680}


def test_a_stored_configuration_is_taken_as_it_is(tmp_path: Path) -> None:
    GPT2Config(n_embd=24, n_layer=1, n_head=2, n_positions=40).save_pretrained(tmp_path)
    model = build(replace(MINI, architecture=f"hf:{tmp_path}"), vocab_size=100)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["transformer.wte.weight"] == (100, 24)
    with pytest.raises(SettingError, match=r"model\.context: is 64"):
        build(replace(MINI, architecture=f"hf:{tmp_path}", context=64), vocab_size=100)


@pytest.mark.parametrize("name", ["nonesuch", "t5"])
def test_unknown_models_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=name) as caught:
        build(replace(MINI, architecture=f"hf:{name}"), vocab_size=256)
    assert caught.value.where == "model.architecture"
    assert "\n" not in str(caught.value)
