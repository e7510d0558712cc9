"""Learners that are not all alike: each with chips and a pace of its own, and some there for part of the time only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gruppetto.errors import SettingError

__all__ = ["Party"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One learner of a scenario.

    >>> Party(name="guest", chips=8, joins_s=10.0, leaves_s=5.0)
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: learner guest: leaves at 5 s, but joins at 10 s; let it leave later
    """

    name: str
    chips: int
    step_s: float = 1.0
    joins_s: float = 0.0
    leaves_s: float | None = None
    """On notice; None: it stays."""

    def __post_init__(self) -> None:
        where = f"learner {self.name}"
        if not self.name:
            raise SettingError("has no name", where="learner", fix="give each one a name")
        if self.chips < 1:
            raise SettingError(f"has {self.chips} chips", where=where, fix="use 1 or more")
        if not 0 < self.step_s < math.inf:
            raise SettingError(f"has steps of {self.step_s} s", where=where, fix="use more than 0 seconds")
        if not 0 <= self.joins_s < math.inf:
            raise SettingError(f"joins at {self.joins_s} s", where=where, fix="use 0 or more")
        if self.leaves_s is not None and not self.leaves_s > self.joins_s:
            raise SettingError(
                f"leaves at {self.leaves_s:g} s, but joins at {self.joins_s:g} s", where=where, fix="let it leave later"
            )

    def there_s(self, horizon_s: float) -> float:
        """How long it is there, up to the horizon."""
        end = horizon_s if self.leaves_s is None else min(self.leaves_s, horizon_s)
        return max(0.0, end - self.joins_s)
