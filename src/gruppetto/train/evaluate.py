"""How good a model is: its loss on text it was never trained on, and a sample to look at."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gruppetto.train.batches import gather
from gruppetto.train.model import device_of
from gruppetto.train.tokens import TokenArray, Tokenizer

__all__ = ["Evaluation", "evaluate", "sample"]

EVAL_BATCH = 32
"""Windows at a time; it bounds memory and moves the result by rounding only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """``loss`` in nats per predicted token, ``perplexity`` = e^loss, over ``tokens`` predictions."""

    loss: float
    perplexity: float
    tokens: int


@torch.no_grad()
def evaluate(model: nn.Module, tokens: TokenArray, *, context: int, num_windows: int) -> Evaluation:
    """The loss over ``num_windows`` windows spread evenly over ``tokens``, the same ones every time.

    All windows are taken when there are fewer. The model comes back in the mode (train or eval) it was in.
    """
    available = len(tokens) // context
    assert available, "the held-out part is shorter than one window"
    # The first window of each of num_windows equal stretches.
    windows = np.arange(min(num_windows, available), dtype=np.int64) * available // min(num_windows, available)
    was_training = model.training
    model.eval()
    total = 0.0
    for chunk in np.array_split(windows, math.ceil(len(windows) / EVAL_BATCH)):
        input_ids = gather(tokens, chunk, context).to(device_of(model))
        total += float(_prediction_loss(model, input_ids)) * len(chunk)
    model.train(was_training)
    loss = total / len(windows)
    perplexity = math.exp(loss) if loss < 700 else math.inf
    return Evaluation(loss=loss, perplexity=perplexity, tokens=len(windows) * (context - 1))


def _prediction_loss(model: nn.Module, input_ids: Tensor) -> Tensor:
    """Without what a mixture of experts adds in training to keep its experts in use."""
    found = model(input_ids, labels=input_ids)
    balance = getattr(found, "aux_loss", None)
    loss: Tensor = found.loss
    return loss if balance is None else loss - model.router_aux_loss_coef * balance


@torch.no_grad()
def sample(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    num_tokens: int,
    generator: torch.Generator,
    *,
    context: int,
    temperature: float = 0.8,
) -> str:
    """``prompt`` and at most ``num_tokens`` tokens of the model's own, ending early where a document would.

    Each token is drawn from the model's distribution at ``temperature``, given the last ``context`` tokens.
    """
    assert temperature > 0
    ids = tokenizer.encode(prompt) or [tokenizer.end_of_document]
    shown = 0 if prompt else 1
    device = device_of(model)
    was_training = model.training
    model.eval()
    for _ in range(num_tokens):
        logits: Tensor = model(torch.tensor([ids[-context:]], device=device)).logits[0, -1].cpu()
        drawn = torch.multinomial((logits.float() / temperature).softmax(-1), 1, generator=generator)
        if int(drawn) == tokenizer.end_of_document:
            break
        ids.append(int(drawn))
    model.train(was_training)
    return tokenizer.decode(ids[shown:])
