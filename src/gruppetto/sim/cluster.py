"""What there is to train with: chips, their failures, a model, links, a host for the syncer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gruppetto.errors import SettingError
from gruppetto.sim.failures import YEAR_S
from gruppetto.sim.machine import MachineProfile
from gruppetto.sim.paper import FITTED, Hardware
from gruppetto.sim.scenario import Scenario
from gruppetto.sim.tally import Tally

__all__ = ["Cluster", "elastic_goodput"]

WARM_UP_S = 3 * 3600.0
"""A cluster begins whole; after so long as many slices are away as ever."""
LEAST_S, MOST_S = 5 * 3600.0, 200 * 86_400.0
FAULTS_ENOUGH = 1500.0
LOOK_S = 3 * 3600.0
"""Nothing is looked at between two faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Every impossible value is refused with the fix.

    A step takes ``step_s`` whatever the number of learners: a chip's share of the batch stays what it is.
    """

    chips: int
    parameters: int
    """Of the model."""
    step_s: float = 1.0
    mtbi_s: float = YEAR_S
    """Mean time between interruptions of one chip; infinite for never."""
    gbit_s: float = 10.0
    """Of the link to the syncer, each way: of every site, or of every learner where no sites are named."""
    sites: int | None = None
    """Places with a link each. A learner lies within one; None: every learner has a link of its own."""
    syncer_gib: float | None = None
    """Memory of the syncer's host; None: whatever it takes."""
    syncer_gbit_s: float | None = None
    """The syncer's own link, each way; None: whatever it takes."""
    spread: float = 0.0
    """The slowest learner needs 1 + spread times the step of the fastest."""
    jitter: float = 0.05
    hardware: Hardware = FITTED
    machine: MachineProfile = field(default_factory=MachineProfile)
    """Of the syncer's host; the link is ``gbit_s``, its latency the machine's."""

    def __post_init__(self) -> None:
        for name in ("chips", "parameters", "sites"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"is {value}", where=f"plan.{name}", fix="use 1 or more")
        if self.sites is not None and self.sites > self.chips:
            raise SettingError(
                f"{self.sites} sites with {self.chips} chips", where="plan.sites", fix=f"use at most {self.chips}"
            )
        for name in ("gbit_s", "syncer_gib", "syncer_gbit_s", "step_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingError(f"is {value}", where=f"plan.{name}", fix="use more than 0")
        self.scenario(1)  # judges the rest

    def scenario(self, learners: int, *, hours: float = 24.0) -> Scenario:
        """The cluster and its failures, as the simulator takes it. A slice lies within one site."""
        elastic = self.hardware.elastic
        size = min(elastic.slice_chips, self.chips // (self.sites or 1))
        return Scenario(
            chips=self.chips,
            learners=learners,
            mtbi_s=self.mtbi_s,
            hours=max(hours, self.step_s / 1800),
            step_s=self.step_s,
            spread=self.spread,
            jitter=self.jitter,
            hardware=replace(self.hardware, elastic=replace(elastic, slice_chips=size)),
        )

    def goodput(self, learners: int) -> float:
        """Of M learners, by the rule that they do as one elastic job on an M-th of the chips
        (docs/simulator.md, within 4 points); the shipping cores are simulated once it is known what with.

        Learners smaller than a slice fail with all that share it, as often as one that has the whole slice."""
        alone = self.scenario(1)
        share = max(self.chips // learners, min(alone.hardware.elastic.slice_chips, self.chips))
        return elastic_goodput(replace(alone, chips=share, spread=0.0, jitter=0.0))


@lru_cache(maxsize=4096)
def elastic_goodput(scenario: Scenario) -> float:
    """One elastic job on all chips of a scenario, after a warm-up; as long as it takes to see enough of its faults."""
    if math.isinf(scenario.mtbi_s):
        return 1.0
    rate = scenario.chips / scenario.mtbi_s
    end = WARM_UP_S + min(MOST_S, max(LEAST_S, FAULTS_ENOUGH / rate))
    job, now = scenario.job(0, of=1, seed=0, until_s=end), 0.0
    tally = Tally(chips=scenario.chips, parties=1, horizon_s=end)
    while now < end:
        stretch = job.train(now, scenario.step_s, math.ceil(LOOK_S / scenario.step_s))
        if stretch.done_s > WARM_UP_S:
            tally.trained(max(stretch.began_s, WARM_UP_S), stretch.done_s, chips=stretch.chips)
        now = stretch.done_s
    return tally.useful_chip_s / (scenario.chips * (end - WARM_UP_S))
