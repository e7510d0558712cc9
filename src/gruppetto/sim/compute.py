"""How long an inner step takes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gruppetto.errors import SettingError

__all__ = ["Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A mean step time with uniform jitter.

    >>> Pace(step_s=2.0).next_step_s(random.Random(0))
    2.0
    """

    step_s: float
    jitter: float = 0.0
    """Every step takes between (1 − jitter) and (1 + jitter) times ``step_s``."""

    def __post_init__(self) -> None:
        if not self.step_s > 0:
            raise SettingError(f"step_s is {self.step_s}", where="pace.step_s", fix="use more than 0 seconds")
        if not 0 <= self.jitter < 1:
            raise SettingError(f"jitter is {self.jitter}", where="pace.jitter", fix="use a share from 0 to below 1")

    def next_step_s(self, rng: random.Random) -> float:
        return self.step_s * rng.uniform(1.0 - self.jitter, 1.0 + self.jitter)
