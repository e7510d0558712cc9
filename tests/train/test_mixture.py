"""A mixture of experts trains with a loss that keeps its experts in use, and is judged without it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from gruppetto.train.evaluate import evaluate
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting

MIXTURE = ModelSetting(architecture="hf:mixtral", dim=16, layers=1, heads=2, ffn_dim=16, context=16)


def test_it_is_judged_by_its_predictions_alone() -> None:
    model = build(MIXTURE, 256)
    tokens = np.random.default_rng(0).integers(0, 256, 16 * 8).astype(np.uint16)
    input_ids = torch.from_numpy(tokens.astype(np.int64)).view(8, 16)
    with torch.no_grad():
        found = model(input_ids, labels=input_ids)
        predicted = float(F.cross_entropy(found.logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten()))
    judged = evaluate(model, tokens, context=16, num_windows=8).loss
    assert abs(judged - predicted) < 1e-5
    assert float(found.loss) > predicted + 5e-4  # what is trained has the balance in it


def test_gradients_of_the_balance_reach_the_router() -> None:
    model = build(MIXTURE, 256)
    input_ids = torch.arange(64).view(4, 16)
    model(input_ids, labels=input_ids).aux_loss.backward()
    router = model.model.layers[0].mlp.gate.weight  # type: ignore[union-attr, index]
    assert router.grad is not None and float(router.grad.norm()) > 0
