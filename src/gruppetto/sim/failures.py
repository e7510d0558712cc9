"""What fails when, and for how long: all chips of a cluster as one superposed Poisson process (section 12).

Chips are never objects: N of them with a mean time between interruptions are one rate. A sample is drawn once per seed,
as a stream; every system that is compared is given the same one.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from gruppetto.errors import SettingError

__all__ = ["YEAR_S", "Cause", "Fault", "Recovery", "draw_faults"]

YEAR_S = 365.0 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long what has failed stays away: exponentiated Weibull, F(x) = (1 − exp(−(x/scale)^shape))^power.

    >>> round(Recovery(scale_s=600.0, shape=1.0, power=1.0).mean_s)  # an exponential
    600
    >>> half = Recovery(scale_s=600.0, shape=1.5, power=2.0).quantile_s(0.5)
    >>> round(1 - math.exp(-((half / 600) ** 1.5)), 6) == round(0.5**0.5, 6)
    True
    """

    scale_s: float
    shape: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        for name in ("scale_s", "shape", "power"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise SettingError(f"{name} is {getattr(self, name)}", where=f"recovery.{name}", fix="use more than 0")

    def quantile_s(self, share: float) -> float:
        """The time within which ``share`` (0 ≤ share < 1) of all recoveries are over."""
        return float(self.scale_s * (-math.log1p(-(share ** (1.0 / self.power)))) ** (1.0 / self.shape))

    def draw_s(self, rng: random.Random) -> float:
        return self.quantile_s(rng.random())

    @property
    def mean_s(self) -> float:
        """By the midpoint rule over the quantiles, good to 0.1 %."""
        points = 20_000
        return sum(self.quantile_s((i + 0.5) / points) for i in range(points)) / points


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One kind of interruption: chips on their own, racks, power domains, regions, maintenance, preemption.

    ``source_chips`` chips go down together, ``mtbi_s`` is the mean time between two interruptions of one such group.
    With ``notice`` the job hears of it in time to end its step: nothing half done is lost.
    """

    name: str
    mtbi_s: float
    recovery: Recovery
    source_chips: int = 1
    notice: bool = False

    def __post_init__(self) -> None:
        if not self.mtbi_s > 0:
            raise SettingError(f"mtbi_s is {self.mtbi_s}", where=f"cause {self.name}", fix="use more than 0 seconds")
        if self.source_chips < 1:
            raise SettingError(f"source_chips is {self.source_chips}", where=f"cause {self.name}", fix="use 1 or more")

    def rate(self, chips: int) -> float:
        """Interruptions a second among ``chips`` chips.

        >>> Cause(name="chip", mtbi_s=YEAR_S, recovery=Recovery(scale_s=60)).rate(1_200_000) * 3600 // 1
        136.0
        """
        return -(-chips // self.source_chips) / self.mtbi_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """From ``at_s`` on, chips first_chip … first_chip + num_chips − 1 are away for ``down_s`` seconds."""

    at_s: float
    first_chip: int
    num_chips: int
    down_s: float
    notice: bool = False
    cause: str = "chip"

    def widened(self, slice_chips: int, chips: int, shared: Container[int] | None = None) -> Fault:
        """The same of all slices that it touches, in a cluster of ``chips``; or only of the slices in ``shared``.

        >>> fault = Fault(at_s=1.0, first_chip=13, num_chips=4, down_s=60.0)
        >>> of_all, of_one = fault.widened(8, 20), fault.widened(8, 20, {1})
        >>> (of_all.first_chip, of_all.num_chips), (of_one.first_chip, of_one.num_chips)
        ((8, 12), (8, 9))
        """
        first, end = self.first_chip, self.first_chip + self.num_chips
        if shared is None or first // slice_chips in shared:
            first = first // slice_chips * slice_chips
        if shared is None or (end - 1) // slice_chips in shared:
            end = min(chips, -(-end // slice_chips) * slice_chips)
        return replace(self, first_chip=first, num_chips=end - first)


def draw_faults(causes: Sequence[Cause], *, chips: int, seed: int) -> Iterator[Fault]:
    """All faults of a cluster in order of time, without end. The same seed gives the same ones.

    Streams of different causes are independent, so that adding a cause leaves the faults of the others as they were.
    """
    return heapq.merge(*(_stream(cause, chips, seed) for cause in causes), key=lambda fault: fault.at_s)


def _stream(cause: Cause, chips: int, seed: int) -> Iterator[Fault]:
    rng = random.Random(f"{seed}/{cause.name}")  # hashed by its own algorithm, not by Python's salted one
    rate = cause.rate(chips)
    sources = -(-chips // cause.source_chips)
    if math.isinf(cause.mtbi_s):
        return
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        first = rng.randrange(sources) * cause.source_chips
        yield Fault(
            at_s=now,
            first_chip=first,
            num_chips=min(cause.source_chips, chips - first),
            down_s=cause.recovery.draw_s(rng),
            notice=cause.notice,
            cause=cause.name,
        )
