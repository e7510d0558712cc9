"""The learner's own optimizer: AdamW, and the learning rate of a round."""

from __future__ import annotations

import math

import torch
from torch import nn

from gruppetto.train.setting import InnerSetting

__all__ = ["adamw", "learning_rate", "set_learning_rate"]


def learning_rate(setting: InnerSetting, round: int, total_rounds: int) -> float:
    """The rate at ``round`` of ``total_rounds``: a linear warm-up, then a cosine down to ``final_share``.

    ``round`` is the newest that the learner has observed, not its own count of steps: unequal learners anneal
    together. Rounds beyond the last keep the last rate.

    >>> setting = InnerSetting(learning_rate=1.0, warmup_rounds=10, final_share=0.1)
    >>> [round(learning_rate(setting, r, total_rounds=110), 2) for r in (0, 4, 9, 10, 60, 110, 200)]
    [0.1, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    """
    warmup = min(setting.warmup_rounds, total_rounds // 10)
    if round < warmup:
        return setting.learning_rate * (round + 1) / warmup
    passed = min(1.0, (round - warmup) / max(1, total_rounds - warmup))
    share = setting.final_share + (1 - setting.final_share) * (1 + math.cos(math.pi * passed)) / 2
    return setting.learning_rate * share


def adamw(model: nn.Module, setting: InnerSetting) -> torch.optim.AdamW:
    """AdamW over all of the model, with weight decay on matrices only: a gain has nothing to shrink."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": setting.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=setting.learning_rate,
        betas=(setting.beta1, setting.beta2),
        eps=setting.eps,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use ``rate`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
