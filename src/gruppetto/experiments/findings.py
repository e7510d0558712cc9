"""What an experiment has found: means with 95 % intervals (Student's t, over seeds), and whether the orderings hold.

Two arms are compared seed by seed, so that what a seed does to both cancels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gruppetto.experiments.experiment import HOW, LOSS, Arm, Column, Experiment, Ordering, Scale, Value
from gruppetto.experiments.store import Result, Store
from gruppetto.experiments.texts import texts
from gruppetto.sim.tally import spread

__all__ = ["NOT_MADE", "Findings", "Judged", "Verdict", "read"]

LARGEST = 1e100
"""Of what is larger the square is no number."""
ROUNDING = 1e-12
"""Shares that differ by less do so by how they are computed."""


def read(value: Value, mine: Result, other: Result | None) -> float | None:
    """A figure of a result; None if it has none: what it is made of is missing, came to no number, or is never reached.

    >>> read(lambda mine, other: mine["a"] / mine["b"], {"a": 1.0, "b": 0.0}, None) is None
    True
    """
    try:
        found = value(mine, other)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int | float) and abs(found) < LARGEST else None


NOT_MADE = "not made"
"""The word for two arms that have no seed in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``HOLDS``, ``DOES NOT HOLD``, ``undecided`` or ``not made``, and the difference that says so, as a share."""

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
        self._by_name = {arm.name: arm for arm in experiment.arms_on(scale)}

    def seeds(self, arm: Arm) -> list[int]:
        """Those of which there is a result."""
        return [s for s in range(self.experiment.number_of_seeds(self.scale)) if arm.under(s) in self._store]

    def values(self, arm: Arm, column: Column) -> list[float]:
        """Of every seed that has one."""
        return [value for value in self._by_seed(arm, column) if value is not None]

    def cell(self, arm: Arm, column: Column) -> str:
        """Mean ± half its interval, in words for a table; of how many seeds, where it is not all that are there."""
        values, seeds = self.values(arm, column), self.seeds(arm)
        if column.value is LOSS.value and len(values) < len(seeds):
            return f"no number in {len(seeds) - len(values)} of {len(seeds)} seeds"
        if not values:
            return ""
        mean, half = spread(values)
        text = format(mean, column.form) + ("" if half is None else f" ± {half:{column.form.lstrip('+')}}")
        few = "" if len(values) == len(seeds) else f" ({len(values)} of {len(seeds)} seeds)"
        return text.replace("%", " %") + few

    def corpora(self) -> list[str]:
        """What results say of the corpus that the scale names: the first digits of its hash, all that there are."""
        return sorted({sha256[:16] for sha256 in self.texts().get(self.scale.data, ())})

    def texts(self) -> dict[str, Counter[str]]:
        """By the name of the data of these arms: how many results are of each hash that is known."""
        return texts((arm.under(seed) for arm in self.arms for seed in self.seeds(arm)), self._store)

    def lacking(self) -> list[str]:
        """The arms beside which some that are there would stand, and that are not there under any seed of theirs."""
        there = [arm for arm in self.arms if self.seeds(arm)]
        return list(dict.fromkeys(a.beside for a in there if a.beside and not any(o for _, o in self._results(a))))

    def judged(self) -> list[Judged]:
        """Every ordering between arms that were asked for."""
        asked = {arm.name for arm in self.arms}
        orderings = [o for o in self.experiment.orderings(self.scale) if {o.less, o.more} <= asked]
        return [Judged(ordering=o, verdict=self.verdict(o)) for o in orderings]

    def verdict(self, ordering: Ordering) -> Verdict:
        """It holds, or does not, if the interval of the paired difference lies on one side.

        A loss that is no number is above every one that is; other figures that only one of the two has under a seed say
        nothing, and neither do the seeds that are left then.
        """
        less, more = self._by_name[ordering.less], self._by_name[ordering.more]
        seeds = sorted({*self.seeds(less)} & {*self.seeds(more)})
        if not seeds:
            return Verdict(word=NOT_MADE, share=None, half=None)
        shares, ruined, spared, lacking = list[float](), 0, 0, False
        for seed in seeds:
            low, high = (read(ordering.value, self._store[a.under(seed)], self._other(a, seed)) for a in (less, more))
            if low is not None and high is not None and high > 0 and abs(low / high) < LARGEST:
                shares.append(low / high - 1.0)
            elif ordering.value is LOSS.value and (low is None) != (high is None):
                ruined, spared = ruined + (low is None), spared + (high is None)
            else:
                lacking = lacking or low is not None or high is not None
        if ruined and not spared and ruined + len(shares) > 1:
            return Verdict(word="DOES NOT HOLD", share=None, half=None)  # it came to no number at all
        shares += [-1.0] * spared
        if ruined or not shares:
            return Verdict(word="undecided", share=None, half=None)
        mean, half = spread(shares)
        if half is None or lacking or abs(mean - ordering.within) <= half + ROUNDING:
            return Verdict(word="undecided", share=mean, half=half)
        return Verdict(word="HOLDS" if mean < ordering.within else "DOES NOT HOLD", share=mean, half=half)

    def as_json(self) -> dict[str, Any]:
        """All of it, for machines."""
        return {
            "experiment": self.experiment.name,
            "how": HOW[self.experiment.how],
            "quick": self.scale.quick,
            **({"corpus": self.scale.data, "corpus_sha256": self.corpora()} if self.scale.data else {}),
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
        return {"mean": mean, "half": half, "by_seed": self._by_seed(arm, column)}

    def _by_seed(self, arm: Arm, column: Column) -> list[float | None]:
        """Of every seed that is there."""
        return [read(column.value, mine, other) for mine, other in self._results(arm)]

    def _results(self, arm: Arm) -> Iterator[tuple[Result, Result | None]]:
        for seed in self.seeds(arm):
            yield self._store[arm.under(seed)], self._other(arm, seed)

    def _other(self, arm: Arm, seed: int) -> Result | None:
        if arm.beside not in self._by_name:
            return None
        other = self._by_name[arm.beside].under(seed)
        return self._store.get(other)
