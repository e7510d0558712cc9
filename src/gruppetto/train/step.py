"""One training step, the same for a decoupled learner and for every rival it is measured against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gruppetto.train.inner import set_learning_rate
from gruppetto.train.model import device_of

__all__ = ["StepResult", "backward", "train_step", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """``loss`` in nats per token before the step; ``grad_norm`` before clipping; ``tokens`` in the batch."""

    loss: float
    grad_norm: float
    tokens: int


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[Tensor, Tensor],
    *,
    rate: float,
    clip_norm: float,
) -> StepResult:
    """Forward, backward, clip, one step of the optimizer at learning rate ``rate``, gradients cleared.

    ``model`` may be wrapped, as data parallel does to average gradients during backward.
    """
    loss = backward(model, batch)
    grad_norm = update(model, optimizer, rate=rate, clip_norm=clip_norm)
    return StepResult(loss=loss, grad_norm=grad_norm, tokens=batch[0].numel())


def backward(model: nn.Module, batch: tuple[Tensor, Tensor], *, share: float = 1.0) -> float:
    """Add ``share`` times the gradient of the batch to the gradients; the loss, unscaled."""
    input_ids, labels = (tensor.to(device_of(model)) for tensor in batch)
    loss: Tensor = model(input_ids, labels=labels).loss
    (loss if share == 1.0 else loss * share).backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def update(model: nn.Module, optimizer: torch.optim.Optimizer, *, rate: float, clip_norm: float) -> float:
    """Clip the gradients to ``clip_norm`` together, step, clear them; their norm before clipping."""
    set_learning_rate(optimizer, rate)
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    optimizer.zero_grad()
    # Of a model spread over ranks it is a part of the norm until it is gathered.
    return float(grad_norm.full_tensor() if hasattr(grad_norm, "full_tensor") else grad_norm)
