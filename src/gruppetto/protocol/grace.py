"""The adaptive grace window: how long a round may wait for more answers than it needs (section 3, step 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MeasuredTimes", "ema", "grace_window_s", "median"]


def ema(old: float | None, sample: float, factor: float) -> float:
    """The moving average after ``sample``; the first sample is taken as it is.

    >>> ema(None, 2.0, 0.1), ema(2.0, 3.0, 0.1)
    (2.0, 2.1)
    """
    return sample if old is None else old + factor * (sample - old)


FAR_APART = 4.0
"""Two middle values further apart have no middle: the lower counts."""


def median(values: Sequence[float]) -> float | None:
    """The middle value; the mean of the two middle ones unless they are far apart; None of nothing.

    So of two learners a single one that says absurd things does not hold the round.

    >>> median([3.0, 1.0, 2.0]), median([1.0, 2.0]), median([1e9, 1.0]), median([])
    (2.0, 1.5, 1.0, None)
    """
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[middle]
    return (lower + upper) / 2 if upper <= FAR_APART * lower else lower


@dataclass(slots=True, kw_only=True)
class MeasuredTimes:
    """Moving averages of what a round spends, in seconds; None until measured."""

    factor: float
    quorum_s: float | None = None
    """ξ_quorum: from the opening of a round to its quorum, but for the time in which a round before it was open."""
    sync_s: float | None = None
    """ξ_sync: merge, persist and publish."""

    def quorum_took(self, seconds: float) -> None:
        self.quorum_s = ema(self.quorum_s, seconds, self.factor)

    def sync_took(self, seconds: float) -> None:
        self.sync_s = ema(self.sync_s, seconds, self.factor)


def grace_window_s(
    *,
    step_s: float | None,
    quorum_s: float | None,
    sync_s: float | None,
    overlap_steps: int,
    grace_factor: float,
    most_steps: int = 1,
) -> float:
    """ξ_grace = γ · max(0, τ·ξ_step − (ξ_quorum + ξ_sync)), at most one step; 0 until all three are known.

    ``most_steps``: at most so many, where the fleet moves on only then (``rounds_in_flight``).

    >>> grace_window_s(step_s=1.0, quorum_s=0.9, sync_s=0.1, overlap_steps=2, grace_factor=0.8)
    0.8
    >>> grace_window_s(step_s=1.0, quorum_s=None, sync_s=0.1, overlap_steps=2, grace_factor=0.8)
    0.0
    """
    if step_s is None or quorum_s is None or sync_s is None:
        return 0.0
    slack_s = max(0.0, overlap_steps * step_s - (quorum_s + sync_s))
    return min(grace_factor * slack_s, most_steps * step_s)
