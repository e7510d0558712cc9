"""A short ramp of the learning rate for an optimizer that begins afresh in the middle of a run.

Without moments Adam's first steps have nearly the full length in every coordinate, however small the gradients have
become: at the learning rate of a run that is well under way they undo some of it. A few steps at a smaller rate give
the moments the time to form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["Rewarm"]


class Rewarm:
    """Multiplies the rates of an optimizer during its steps, and at no other time, so that schedulers never see it.

    The factor rises in equal parts over ``steps`` steps and is 1 from then on.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    >>> rewarm = Rewarm(optimizer, steps=3)
    >>> for _ in range(4):
    ...     before = rewarm.factor
    ...     rewarm.before_step()
    ...     print(before, optimizer.param_groups[0]["lr"])
    ...     rewarm.after_step()
    0.25 0.2
    0.5 0.4
    0.75 0.6000000000000001
    1.0 0.8
    >>> optimizer.param_groups[0]["lr"]
    0.8
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None, *, steps: int) -> None:
        self._optimizer, self._steps = optimizer, steps
        self._done = 0
        self._rates: list[tuple[dict[str, Any], Any]] = []
        """The rates to be put back, with their groups, during a step."""

    @property
    def factor(self) -> float:
        """For the step in progress, or the next one."""
        return min(1.0, (self._done + 1) / (self._steps + 1))

    def before_step(self) -> None:
        """The optimizer is about to step."""
        self._put_back()  # a step that raised was not ended
        if self._optimizer is None or self.factor == 1.0:
            return
        for group in self._optimizer.param_groups:
            rate = group["lr"]
            if isinstance(rate, Tensor):  # it may be part of a captured graph: only its value may change
                self._rates.append((group, rate.clone()))
                rate.mul_(self.factor)
            else:
                self._rates.append((group, rate))
                group["lr"] = rate * self.factor

    def after_step(self) -> None:
        """The step is done, and counts."""
        self._put_back()
        self._done += 1

    def _put_back(self) -> None:
        for group, rate in self._rates:
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self._rates.clear()
