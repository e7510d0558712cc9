"""What an experiment is: a question, arms that differ in one thing, what is read off, and what should come out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from gruppetto.errors import SettingError
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = [
    "BESIDE",
    "HOW",
    "LOSS",
    "Arm",
    "Column",
    "Experiment",
    "How",
    "Ordering",
    "Scale",
    "Value",
    "beside",
    "figure",
]

T = TypeVar("T")
How = Literal["virtual", "measured"]
HOW: dict[How, str] = {
    "virtual": "virtual time: real tensors and the shipping cores under a simulated clock",
    "measured": "measured: real processes on this machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of an experiment: a coarse look within minutes, or what evidence asks for."""

    quick: bool = False
    seeds: int | None = None
    """None: as many as the experiment is made for."""
    only: str = ""
    """A regular expression; arms in whose name it is not found are left out."""
    cache: Path = Path(".cache/experiments")
    """Where material that was fetched lies."""
    data: str = ""
    """A corpus, in place of the one that rides have by default; "": that one."""

    def pick(self, quick: T, full: T) -> T:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One row of the table: the same ride under every seed."""

    name: str
    ride: Ride
    beside: str = ""
    """The arm that it is compared with, seed by seed."""
    line: str = ""
    """In the figure it is a point of this line, at ``x``; without one it has a row of its own."""
    x: float = 0.0

    def under(self, seed: int) -> Ride:
        """Its ride under a seed."""
        return self.ride.but(seed=seed)


Value = Callable[[Result, Result | None], float | None]
"""A figure of a result, and of that of the arm beside it under the same seed; None: it has none."""


def figure(key: str) -> Value:
    """The figure called ``key``, as it is."""
    return lambda mine, other: mine.get(key)


def beside(key: str) -> Value:
    """By how much it is above that of the arm beside it, as a share."""

    def value(mine: Result, other: Result | None) -> float | None:
        if other is None or mine.get(key) is None or other.get(key) is None:
            return None
        return float(mine[key] / other[key] - 1.0)

    return value


_loss: Value = figure("loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What is read off every result; of several seeds the mean and its 95 % interval."""

    title: str
    value: Value
    form: str = ".3f"


LOSS = Column(title="held-out nats", value=_loss)
BESIDE = Column(title="beside", value=beside("loss"), form="+.2%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """That ``value`` is less for arm ``less`` than for arm ``more``, but for a share of ``within``, seed by seed.

    ``within`` above 0: less may be so much above. Below 0: it is to be so much below at the least.
    """

    less: str
    more: str
    says: str
    """In words, and who says so."""
    value: Value = _loss
    within: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One question. ``arms`` and ``orderings`` are made for a scale."""

    name: str
    question: str
    paper: str
    """What the paper has found, for comparison; "" if it has not asked."""
    arms: Callable[[Scale], Sequence[Arm]]
    columns: Sequence[Column] = (BESIDE, LOSS)
    """The first one is drawn."""
    orderings: Callable[[Scale], Sequence[Ordering]] = lambda scale: ()
    how: How = "virtual"
    alone: bool = False
    """Its rides are timed: one at a time, however many workers there may be."""
    x_label: str = ""
    log_x: bool = False
    seeds: tuple[int, int] = (3, 5)
    """Of a quick look, and of evidence."""
    cost: str = ""
    """Of the whole of it, in words: steps times what a step takes on the machine of docs/evidence.md."""

    def number_of_seeds(self, scale: Scale) -> int:
        return scale.seeds if scale.seeds is not None else scale.pick(*self.seeds)

    def arms_on(self, scale: Scale) -> list[Arm]:
        """All arms; where the scale names a corpus, those that train on text, on that one. None of them: no arm."""
        if not scale.data:
            return list(self.arms(scale))
        on_text = [arm for arm in self.arms(scale) if arm.ride.data == Ride().data]
        return [replace(arm, ride=arm.ride.but(data=scale.data)) for arm in on_text]

    def found(self, scale: Scale) -> list[Arm]:
        """The arms in whose names is what the scale asks for. Raises :class:`SettingError` for a broken expression."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what it may mean in another Python
                only = re.compile(scale.only)
        except (re.error, OverflowError, RecursionError) as broken:
            raise SettingError(f"is no regular expression ({broken})", where="--only", fix="mend it") from None
        return [arm for arm in self.arms_on(scale) if only.search(arm.name)]

    def chosen(self, scale: Scale) -> list[Arm]:
        """The arms that the scale asks for. Raises :class:`SettingError` for a broken expression, and for none."""
        found, of_all = self.found(scale), self.arms_on(scale)
        if not of_all:
            what = f"{self.name} trains on {self.arms(scale)[0].ride.data}, and on no other corpus"
            raise SettingError(what, where="--data", fix="leave it out")
        if not found:
            fix = f"use a part of one, such as {of_all[0].name!r}"
            raise SettingError(f"{scale.only!r} is in the name of no arm of {self.name}", where="--only", fix=fix)
        return found

    def rides(self, scale: Scale) -> list[Ride]:
        """All of them, seed by seed, each once: what is shared by two arms is made once."""
        arms = self.chosen(scale)
        of_all = [arm.under(seed) for seed in range(self.number_of_seeds(scale)) for arm in arms]
        return list({ride.hash: ride for ride in of_all}.values())
