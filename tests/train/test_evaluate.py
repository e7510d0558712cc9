"""The held-out loss is the same number every time; a sample comes from the model and its generator."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gruppetto.train.data import Data
from gruppetto.train.evaluate import evaluate, sample
from gruppetto.train.llama import CausalOutput
from gruppetto.train.model import build
from gruppetto.train.setting import TrainSetting


def test_the_loss_is_that_of_the_windows(setting: TrainSetting, data: Data) -> None:
    model = build(setting.model, data.tokenizer.vocab_size).train()
    found = evaluate(model, data.held_out, context=32, num_windows=10_000)
    windows = len(data.held_out) // 32
    ids = torch.from_numpy(data.held_out[: windows * 32].astype("int64")).view(windows, 32)
    logits = model(ids).logits.double()
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert found.loss == pytest.approx(loss.item(), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.tokens == windows * 31
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_fewer_windows_are_spread_and_fixed(setting: TrainSetting, data: Data) -> None:
    model = build(setting.model, data.tokenizer.vocab_size).eval()
    some = evaluate(model, data.held_out, context=32, num_windows=5)
    assert some == evaluate(model, data.held_out, context=32, num_windows=5)
    assert some.tokens == 5 * 31
    assert some.loss != evaluate(model, data.held_out[: 5 * 32], context=32, num_windows=5).loss
    assert not model.training


def test_a_sample_follows_its_generator(setting: TrainSetting, data: Data) -> None:
    model = build(setting.model, data.tokenizer.vocab_size)

    def drawn(seed: int) -> str:
        generator = torch.Generator().manual_seed(seed)
        return sample(model, data.tokenizer, "the rider", 60, generator, context=setting.context)

    before = torch.random.get_rng_state()
    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert drawn(0).startswith("the rider")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_sample_ends_where_the_document_does(setting: TrainSetting, data: Data) -> None:
    model = build(setting.model, data.tokenizer.vocab_size)

    def end_it(module: nn.Module, given: object, found: CausalOutput) -> CausalOutput:
        found.logits[..., data.tokenizer.end_of_document] = 100.0
        return found

    def drawn(prompt: str) -> str:
        return sample(model, data.tokenizer, prompt, 20, torch.Generator().manual_seed(0), context=32)

    assert len(drawn("so")) > 2
    assert drawn("")
    model.register_forward_hook(end_it)
    assert drawn("so") == "so"
    assert drawn("") == ""
