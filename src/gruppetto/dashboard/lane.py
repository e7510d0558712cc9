"""What is known of one learner over time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gruppetto.dashboard.series import Series
from gruppetto.dashboard.stretches import Stretches

__all__ = ["MEASURED", "Lane"]

SLOTS = 512
MEASURED = {
    "step_s": "seconds per step",
    "behind": "rounds behind the syncer",
    "share": "share of the weight of a merged round",
    "norm": "norm of its outer gradient",
    "cosine": "cosine between its outer gradient and the momentum of what was merged",
    "loss": "loss on its own batch, nats per token",
}
"""What is kept of a learner over time, and what it means."""


def _series() -> dict[str, Series]:
    return {name: Series(slots=SLOTS) for name in MEASURED}


@dataclass(slots=True, kw_only=True)
class Lane:
    """One learner, over all its lives."""

    name: str
    states: Stretches = field(default_factory=Stretches)
    """Of the syncer's view: joining, live, away, left."""
    why: str = ""
    """Why the state changed last."""
    source: str = ""
    """Where it began from, if it began in mid-run."""
    incarnation: int = 0
    clock: int = 0
    steps: int = 0
    """Of all lives."""
    tokens: int = 0
    step_s: float | None = None
    stepped_at: float | None = None
    """When it last reported a step."""
    merged_rounds: int = 0
    last_merged_round: int | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    rejected_since: Counter[str] = field(default_factory=Counter)
    """Since a round last held work of it."""
    measured: dict[str, Series] = field(default_factory=_series)
    spoilt: bool = False
    """The loss that it reported last is not finite."""
    busy: Series = field(default_factory=lambda: Series(slots=SLOTS))
    """Seconds spent in steps."""
    life_steps: int = 0
    life_tokens: int = 0

    @property
    def state(self) -> str:
        return self.states.state

    def reborn(self, incarnation: int) -> None:
        """Another process speaks under this name: its totals count from 0."""
        if incarnation != self.incarnation:
            self.incarnation, self.life_steps, self.life_tokens = incarnation, 0, 0
            self.spoilt = False
