"""What all systems train: a small Llama on the bytes of Python's standard library, at a pace that a GPU might have.

Every worker draws its windows from (seed, worker, step), writes the time of each step to a file, and judges its model
at the end; :mod:`race` reads both. The loop goes by the *common* step, as the system counts it: learning rate and end
are the same for those who came late.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gruppetto.runtime.clock import wall_time_s
from gruppetto.train.evaluate import evaluate
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting

__all__ = ["Course", "Setting"]

READY_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for all workers of a race."""

    workers: int
    steps: int
    """Common ones, until the end."""
    sync_every: int
    """Steps between two averagings of the same parameter."""
    pace_s: float
    """Of each step, slept, as a GPU would leave the processor alone."""
    batch: int
    rate: float
    seed: int
    dim: int
    layers: int
    heads: int
    ffn_dim: int
    context: int
    slow: tuple[int, float] | None = None
    """(worker, how many times as long its steps last)."""
    spoilt: tuple[int, int] | None = None
    """(worker, from which of its steps on its gradients are no numbers)."""

    def write(self, place: Path) -> None:
        """Where every worker finds it."""
        (place / "setting.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, place: Path) -> Setting:
        return cls(**json.loads((place / "setting.json").read_text(encoding="utf-8")))


class Course:
    """One worker's way through the training. ``place`` has setting, data, and what workers say."""

    def __init__(self, place: Path, worker: int) -> None:
        torch.set_num_threads(1)
        self.place, self.worker, self.setting = place, worker, Setting.read(place)
        self._train, self._held_out = (np.load(place / f"{part}.npy", mmap_mode="r") for part in ("train", "held_out"))
        self._log = (place / f"{worker}.steps").open("a+", buffering=1, encoding="utf-8")
        self._log.seek(0)
        self._made = sum(1 for _ in self._log)

    @classmethod
    def of_arguments(cls) -> Course:
        """As :mod:`race` starts a worker: PLACE WORKER."""
        return cls(Path(sys.argv[1]), int(sys.argv[2]))

    @property
    def tokens_per_step(self) -> int:
        return self.setting.batch * self.setting.context

    def model(self) -> Any:
        """The same first weights for everybody."""
        s = self.setting
        shape = ModelSetting(
            dim=s.dim, layers=s.layers, heads=s.heads, ffn_dim=s.ffn_dim, context=s.context, seed=s.seed
        )
        return build(shape, 256)

    def adamw(self, parameters: Any) -> torch.optim.AdamW:
        return torch.optim.AdamW(parameters, lr=self.setting.rate, weight_decay=0.1, betas=(0.9, 0.99))

    def batches(self, optimizer: Any, common_step: Callable[[], int] | None = None) -> Iterator[Tensor]:
        """Windows, int64 (batch, context), until the common step is the last; without one, the worker's own counts."""
        self._wait_for_all()
        while (at := self._made if common_step is None else common_step()) < self.setting.steps:
            for group in optimizer.param_groups:
                group["lr"] = self.setting.rate * (0.1 + 0.9 * (1 + math.cos(math.pi * at / self.setting.steps)) / 2)
            yield self._windows()
            self._made += 1
            self._log.write(f"{wall_time_s():.6f}\n")

    def backward(self, net: nn.Module, windows: Tensor) -> None:
        """Gradients of the batch, in the time that the worker takes for them."""
        net(windows, labels=windows).loss.backward()
        setting = self.setting
        if setting.spoilt is not None and setting.spoilt[0] == self.worker and self._made >= setting.spoilt[1]:
            for parameter in net.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(math.nan)
        slower = setting.slow[1] if setting.slow is not None and setting.slow[0] == self.worker else 1.0
        time.sleep(slower * setting.pace_s)

    def finish(self, net: nn.Module) -> None:
        """Say when it was over, and how good the model is."""
        ended = wall_time_s()
        net.zero_grad()
        found = evaluate(net, self._held_out, context=self.setting.context, num_windows=256)
        said = {"ended": ended, "loss": found.loss if math.isfinite(found.loss) else None}
        written = self.place / f"{self.worker}.part"
        written.write_text(json.dumps(said), encoding="utf-8")
        written.rename(self.place / f"{self.worker}.final")

    def _windows(self) -> Tensor:
        setting = self.setting
        drawn = np.random.default_rng((setting.seed, self.worker, self._made))
        begins = drawn.integers(len(self._train) - setting.context, size=setting.batch)
        return torch.from_numpy(np.stack([self._train[b : b + setting.context] for b in begins]).astype(np.int64))

    def _wait_for_all(self) -> None:
        """All begin together; whoever is started again does not wait, since the others are on their way."""
        (self.place / f"{self.worker}.ready").touch()
        until = wall_time_s() + READY_WITHIN_S
        while not (self.place / "go").exists():
            if wall_time_s() > until:
                raise SystemExit(f"nobody said go in {READY_WITHIN_S:g} s")
            time.sleep(0.01)
