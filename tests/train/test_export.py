"""What is exported loads in transformers, with the same logits and the same tokens."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gruppetto.errors import StateError
from gruppetto.train.data import Data
from gruppetto.train.export import export, fill
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting

MINI = ModelSetting(dim=32, layers=2, heads=4, ffn_dim=48, context=32, rope_theta=700.0)


@pytest.mark.parametrize(
    "shape",
    [
        MINI,
        replace(MINI, kv_heads=2, tie_embeddings=False),
        replace(MINI, architecture="hf:qwen3"),
    ],
)
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_it_loads_with_the_same_logits_and_tokens(
    shape: ModelSetting, tokenizer: str, data: Data, bpe_data: Data, tmp_path: Path
) -> None:
    ours = (data if tokenizer == "bytes" else bpe_data).tokenizer
    model = build(shape, ours.vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    export(model, shape, ours, tmp_path / "out" / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    reader = AutoTokenizer.from_pretrained(tmp_path / "out" / "model")

    for text in ("the rider passes the café owner.\n", "  two  spaces ' and\ttabs 山\n\n", "Ā is U+0100"):
        ids = reader(text)["input_ids"]
        assert ids == ours.encode(text)
        assert reader.decode(ids) == text
    given = torch.tensor([ours.encode("a climber waits for")])
    torch.testing.assert_close(loaded(given).logits, model(given).logits, rtol=1e-4, atol=1e-4)
    made = loaded.generate(given, max_new_tokens=4, do_sample=False)
    assert made.shape[1] <= given.shape[1] + 4
    assert loaded.generation_config.eos_token_id == ours.end_of_document
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]


@pytest.mark.parametrize("architecture", ["llama", "hf:qwen3"])
def test_who_may_read_it_says_the_umask(architecture: str, data: Data, tmp_path: Path) -> None:
    shape, before = replace(MINI, architecture=architecture), os.umask(0o027)
    try:
        export(build(shape, data.tokenizer.vocab_size), shape, data.tokenizer, tmp_path / "model")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {0o640}


def test_nothing_is_written_over(data: Data, tmp_path: Path) -> None:
    model = build(MINI, data.tokenizer.vocab_size)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "precious").write_text("kept")
    with pytest.raises(StateError, match="there already"):
        export(model, MINI, data.tokenizer, tmp_path / "model")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "precious"]


def test_a_failed_export_leaves_nothing(data: Data, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match="cannot be written"):
        export(build(MINI, 256), MINI, data.tokenizer, tmp_path / "file" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_weights_of_another_model_fill_nothing() -> None:
    model, other = build(MINI, 256), build(replace(MINI, seed=1), 256)
    weights = {name: parameter.detach().numpy() for name, parameter in other.named_parameters()}
    fill(model, weights)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    fresh = build(MINI, 256)
    first, *_ = weights
    for wrong, says in (
        ({name: values for name, values in weights.items() if name != first}, f"there is no {first}"),
        (weights | {first: weights[first][:2]}, rf"{first} is \[2, 32\], and the model's \[256, 32\]"),
        (weights | {"more": weights[first]}, "more is of no use"),
    ):
        with pytest.raises(StateError, match=says):
            fill(fresh, wrong)
    for mine, same in zip(fresh.parameters(), build(MINI, 256).parameters(), strict=True):
        assert torch.equal(mine, same)
