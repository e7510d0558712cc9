"""Our Llama and that of transformers are the same function of the same parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gruppetto.train.llama import NORM_EPS
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting


def theirs(setting: ModelSetting, vocab_size: int) -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=setting.dim,
            intermediate_size=setting.ffn_dim,
            num_hidden_layers=setting.layers,
            num_attention_heads=setting.heads,
            num_key_value_heads=setting.num_kv_heads,
            max_position_embeddings=setting.context,
            rms_norm_eps=NORM_EPS,
            rope_theta=setting.rope_theta,
            tie_word_embeddings=setting.tie_embeddings,
        )
    )


@pytest.mark.parametrize(
    "setting",
    [
        ModelSetting(dim=32, layers=2, heads=4, ffn_dim=48, context=24, seed=3),
        ModelSetting(dim=32, layers=1, heads=4, kv_heads=1, ffn_dim=40, context=24, rope_theta=500.0),
        ModelSetting(dim=48, layers=3, heads=4, kv_heads=2, ffn_dim=64, context=16, tie_embeddings=False),
    ],
)
def test_names_logits_loss_and_gradients_agree(setting: ModelSetting) -> None:
    ours, other = build(setting, vocab_size=97), theirs(setting, vocab_size=97)
    with torch.no_grad():
        # Small first weights would hide a wrong norm or a wrong rotation.
        for parameter in ours.parameters():
            parameter.mul_(5.0)
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, p.shape) for n, p in other.named_parameters()]
    other.load_state_dict(ours.state_dict())
    ids = torch.randint(0, 97, (3, setting.context), generator=torch.Generator().manual_seed(0))
    mine, its = ours(ids, labels=ids), other(ids, labels=ids)
    torch.testing.assert_close(mine.logits, its.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.loss, its.loss, rtol=1e-5, atol=1e-5)
    mine.loss.backward()
    its.loss.backward()
    for (name, parameter), same in zip(ours.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, same.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_without_labels_there_is_no_loss() -> None:
    model = build(ModelSetting(), vocab_size=256)
    found = model(torch.zeros(1, 5, dtype=torch.int64))
    assert found.loss is None
    assert found.logits.shape == (1, 5, 256)


def test_no_position_sees_the_future() -> None:
    model = build(ModelSetting(), vocab_size=256)
    ids = torch.arange(20)[None]
    changed = ids.clone()
    changed[0, 12] = 99
    before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12], after[:, 12])
