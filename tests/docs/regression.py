"""The small training that the code on our pages is put into: a regression that is called like a Hugging Face model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

__all__ = ["Regression", "training"]


class Regression(nn.Module):
    """Called like a Hugging Face model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=((self.layer(x) - y) ** 2).mean())


def training() -> dict[str, Any]:
    """The names that a loop takes for granted; every batch is the same."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=draw)
    batch = {"x": x, "y": x.sum(dim=1, keepdim=True)}
    with torch.random.fork_rng():
        model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return {"model": model, "optimizer": optimizer, "loader": iter(lambda: batch, None)}
