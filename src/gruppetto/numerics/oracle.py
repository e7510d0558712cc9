"""Synchronous DiLoCo as the textbook has it (arXiv 2311.08105, algorithm 1): the measure of everything else.

All learners take part in every outer step (K = M), nothing overlaps (τ = 0), the model is one fragment (P =
1), and gradients are averaged with equal weights. Parameters are one vector.

>>> import numpy as np
>>> def downhill(theta, step): return theta - 0.1 * theta
>>> history = synchronous_diloco(np.ones(1), [downhill, downhill], 2, 1, lr=1.0, momentum=0.0)
>>> [float(theta[0]) for theta in history]
[1.0, 0.9, 0.81]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["InnerStep", "synchronous_diloco"]

Vector = NDArray[np.floating]

InnerStep = Callable[[Vector, int], Vector]
"""One inner step of one learner: (parameters, step number from 0) → new parameters."""


def synchronous_diloco(
    theta: Vector,
    learners: Sequence[InnerStep],
    outer_steps: int,
    inner_steps: int,
    lr: float,
    momentum: float,
) -> list[Vector]:
    """The global parameters at the start and after each outer step, in the precision of ``theta``."""
    as_theta = theta.dtype.type
    eta, mu = as_theta(lr), as_theta(momentum)
    b = np.zeros_like(theta)
    history = [theta]
    for outer in range(outer_steps):
        total = np.zeros_like(theta)
        for inner_step in learners:
            local = theta.copy()
            for inner in range(inner_steps):
                local = inner_step(local, outer * inner_steps + inner)
            total += theta - local
        delta = as_theta(1 / len(learners)) * total
        b = mu * b + delta
        theta = theta - eta * (delta + mu * b)
        history.append(theta)
    return history
