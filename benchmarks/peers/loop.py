"""The training that all systems are put around: a small perceptron on made-up data, the same everywhere.

Each worker writes the end of every step to a file, from which :mod:`compare` reads what a system costs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

WIDTH, BATCH, SYNC_EVERY, FRAGMENTS = 1024, 64, 20, 2
PAUSE_S = 0.01
"""Of each step, as a GPU would leave the processor alone."""


def model(seed: int = 0) -> nn.Sequential:
    """2.1 million parameters in two layers, which are the fragments of systems that want modules."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def batches(worker: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Without end. What is to be learned is one linear map, seen by each worker on points of its own."""
    told = torch.Generator().manual_seed(1)
    truth = torch.randn(WIDTH, WIDTH, generator=told) / WIDTH**0.5
    own = torch.Generator().manual_seed(100 + worker)
    while True:
        x = torch.randn(BATCH, WIDTH, generator=own)
        yield x, x @ truth


def backward(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The loss of a batch, and its gradients."""
    x, y = batch
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    time.sleep(PAUSE_S)
    return float(loss.detach())


class StepLog:
    """``place``/``worker``.steps: one line a step, the time of its end and its loss."""

    def __init__(self, place: Path, worker: int) -> None:
        self._file = (place / f"{worker}.steps").open("a", buffering=1)

    def step(self, loss: float) -> None:
        self._file.write(f"{time.time():.6f} {loss:.6f}\n")
