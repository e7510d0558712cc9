"""What an experiment has found: means with 95 % intervals (Student's t, over seeds), and whether the orderings hold.

Two arms are compared seed by seed, so that what a seed does to both cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gruppetto.experiments.experiment import HOW, LOSS, Arm, Column, Experiment, Ordering, Scale
from gruppetto.experiments.store import Result, Store
from gruppetto.sim.tally import spread

__all__ = ["Findings", "Judged", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``HOLDS``, ``DOES NOT HOLD`` or ``undecided``, and the difference that says so, as a share."""

    word: str
    share: float | None
    half: float | None
    """Half its 95 % interval; None of a single seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An ordering, and what became of it."""

    ordering: Ordering
    verdict: Verdict


class Findings:
    """Of all arms, the seeds that are there."""

    def __init__(self, experiment: Experiment, scale: Scale, store: Store) -> None:
        self.experiment, self.scale = experiment, scale
        self.arms = experiment.chosen(scale)
        self._store = store
        self._by_name = {arm.name: arm for arm in experiment.arms(scale)}

    def seeds(self, arm: Arm) -> list[int]:
        """Those of which there is a result."""
        return [s for s in range(self.experiment.number_of_seeds(self.scale)) if arm.under(s) in self._store]

    def values(self, arm: Arm, column: Column) -> list[float]:
        """Of every seed that has one."""
        found = [column.value(mine, other) for mine, other in self._results(arm)]
        return [value for value in found if value is not None]

    def cell(self, arm: Arm, column: Column) -> str:
        """Mean ± half its interval, in words for a table."""
        values, seeds = self.values(arm, column), self.seeds(arm)
        if column.value is LOSS.value and len(values) < len(seeds):
            return f"no number in {len(seeds) - len(values)} of {len(seeds)} seeds"
        if not values:
            return ""
        mean, half = spread(values)
        text = format(mean, column.form) + ("" if half is None else f" ± {half:{column.form.lstrip('+')}}")
        return text.replace("%", " %")

    def judged(self) -> list[Judged]:
        """Every ordering between arms that were asked for."""
        asked = {arm.name for arm in self.arms}
        orderings = [o for o in self.experiment.orderings(self.scale) if {o.less, o.more} <= asked]
        return [Judged(ordering=o, verdict=self.verdict(o)) for o in orderings]

    def verdict(self, ordering: Ordering) -> Verdict:
        """It holds, or does not, if the interval of the paired difference lies on one side."""
        less, more = self._by_name[ordering.less], self._by_name[ordering.more]
        shares = []
        for seed in sorted({*self.seeds(less)} & {*self.seeds(more)}):
            found = [ordering.value(self._store[arm.under(seed)], self._other(arm, seed)) for arm in (less, more)]
            if found[0] is not None and found[1] is not None:
                shares.append(found[0] / found[1] - 1.0)
            elif ordering.value is LOSS.value and found[1] is not None:
                return Verdict(word="DOES NOT HOLD", share=None, half=None)  # it came to no number at all
        if not shares:
            return Verdict(word="undecided", share=None, half=None)
        mean, half = spread(shares)
        if half is None or abs(mean - ordering.within) <= half:
            return Verdict(word="undecided", share=mean, half=half)
        return Verdict(word="HOLDS" if mean < ordering.within else "DOES NOT HOLD", share=mean, half=half)

    def as_json(self) -> dict[str, Any]:
        """All of it, for machines."""
        return {
            "experiment": self.experiment.name,
            "how": HOW[self.experiment.how],
            "quick": self.scale.quick,
            "arms": [
                {
                    "arm": arm.name,
                    "ride": arm.ride.told,
                    "seeds": len(self.seeds(arm)),
                    "figures": {column.title: self._figure(arm, column) for column in self.experiment.columns},
                }
                for arm in self.arms
            ],
            "orderings": [
                {"says": j.ordering.says, "verdict": j.verdict.word, "share": j.verdict.share, "half": j.verdict.half}
                for j in self.judged()
            ],
        }

    def _figure(self, arm: Arm, column: Column) -> Mapping[str, Any] | None:
        values: Sequence[float] = self.values(arm, column)
        if not values:
            return None
        mean, half = spread(values)
        return {"mean": mean, "half": half, "by_seed": values}

    def _results(self, arm: Arm) -> Iterator[tuple[Result, Result | None]]:
        for seed in self.seeds(arm):
            yield self._store[arm.under(seed)], self._other(arm, seed)

    def _other(self, arm: Arm, seed: int) -> Result | None:
        if not arm.beside:
            return None
        other = self._by_name[arm.beside].under(seed)
        return self._store.get(other)
