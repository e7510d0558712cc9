"""What would make a plan possible that is not: the nearest link, step, memory, host or disk with which something can be
done.

One of them at a time, as far as planners look; where no single one is enough, the fewest that are, together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gruppetto.sim.choice import Choice
from gruppetto.sim.cluster import Cluster

__all__ = ["Way", "times", "ways_out"]

FIELDS = ("gbit_s", "syncer_gbit_s", "step_s", "syncer_gib")
"""All of them the more the better."""
RATES = {
    "host": ("fold_elements_per_s", "merge_elements_per_s", "step_down_elements_per_s"),
    "disk": ("persist_bytes_per_s",),
}
"""Those of the syncer's machine."""
FARTHEST = 4096.0
"""So many times more is looked at."""

First = Callable[[Cluster, Sequence[int] | None], tuple[Choice, tuple[str, ...]]]
"""The best choice for a cluster and these numbers of learners, and why it cannot be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """With at least these values (by field of :class:`Cluster`; of "host" and "disk", how many times as fast), or with
    ``learners``, it can be done."""

    least: tuple[tuple[str, float], ...] = ()
    learners: int | None = None


def ways_out(cluster: Cluster, learners: Sequence[int] | None, first: First) -> Iterator[Way]:
    """The nearest ways, the ones with fewer changes first; none if nothing within reach is enough."""
    if learners is not None:
        choice, problems = first(cluster, None)
        if not problems:
            yield Way(learners=choice.learners)
    cluster = replace(cluster, mtbi_s=math.inf)  # failures make nothing impossible, and take long to price
    here = [*(field for field in FIELDS if getattr(cluster, field) is not None), *RATES]
    for count in range(1, len(here) + 1):
        found = [way for fields in combinations(here, count) if (way := _enough(cluster, learners, fields, first))]
        yield from found
        if found:
            return


def _enough(cluster: Cluster, learners: Sequence[int] | None, fields: Sequence[str], first: First) -> Way | None:
    """All of ``fields`` by one factor, then each of them as little as the others allow."""
    factors = dict.fromkeys(fields, FARTHEST)

    def can_be_done(changed: dict[str, float]) -> bool:
        return not first(times(cluster, changed), learners)[1]

    if not can_be_done(factors):
        return None
    for field in fields:
        low, high = 1.0, FARTHEST
        while high / low > 1.1 and high > 1.0:
            middle = math.sqrt(low * high)
            if can_be_done({**factors, field: middle}):
                high = middle
            else:
                low = middle
        factors[field] = high
    return Way(least=tuple((field, getattr(cluster, field, 1.0) * factors[field]) for field in fields))


def times(cluster: Cluster, factors: Mapping[str, float]) -> Cluster:
    """So many times more of everything that is named."""
    machine = cluster.machine
    rates = {rate: getattr(machine, rate) * factors[what] for what in RATES if what in factors for rate in RATES[what]}
    more = {field: getattr(cluster, field) * factor for field, factor in factors.items() if field not in RATES}
    return replace(cluster, machine=replace(machine, **rates), **more)
