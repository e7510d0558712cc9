"""What is to be simulated: a cluster, what breaks in it, and how it is used."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gruppetto.errors import SettingError
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim.compute import Pace
from gruppetto.sim.elastic import ElasticJob
from gruppetto.sim.failures import YEAR_S, Cause, Fault, draw_faults
from gruppetto.sim.network import Link
from gruppetto.sim.paper import FITTED, Hardware
from gruppetto.sim.party import Party
from gruppetto.sim.world import SyncerCosts

__all__ = ["Outages", "Scenario"]

LIVENESS_S = 60.0
"""Learners that pause stay linked; a heartbeat every 15 s is enough to say so."""
MAX_SPREAD = 1000.0
"""A learner slower than that makes no step in a day."""
FAULTS_GO_ON = 4
"""Times the horizon: a step that begins before it ends before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages:
    """Interruptions of one thing: exponential times between, and for, each of them."""

    mtbi_s: float
    """Mean time from the end of one to the next; infinite for never."""
    mean_s: float

    def __post_init__(self) -> None:
        for name in ("mtbi_s", "mean_s"):
            if not getattr(self, name) > 0:
                raise SettingError(
                    f"{name} is {getattr(self, name)}", where="simulate: outages", fix="use more than 0 seconds"
                )

    def draw(self, what: str, *, seed: int, horizon_s: float) -> tuple[tuple[float, float], ...]:
        """(when, for how long) of those of ``what`` before the horizon, in order."""
        if math.isinf(self.mtbi_s):
            return ()
        rng, now, found = random.Random(f"{seed}/outages/{what}"), 0.0, []
        while (now := now + rng.expovariate(1 / self.mtbi_s)) < horizon_s:
            found.append((now, rng.expovariate(1 / self.mean_s)))
            now += found[-1][1]
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One cluster over some hours. Every impossible value is refused with the fix.

    >>> Scenario(chips=4, learners=8)
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: simulate.learners: 8 learners on 4 chips; use at most 4, or more chips
    """

    chips: int
    learners: int = 1
    """M, of the decoupled and the synchronous DiLoCo; chips are shared out evenly."""
    mtbi_s: float = YEAR_S
    """Mean time between interruptions of one chip; infinite for never."""
    hours: float = 24.0
    step_s: float = 1.0
    spread: float = 0.0
    """The slowest learner needs 1 + spread times the step of the fastest; the others lie evenly between."""
    jitter: float = 0.0
    """Every step takes between (1 − jitter) and (1 + jitter) times its mean."""
    stride: int = 1
    """Inner steps between two boundaries that the cores see. Goodput is the same, the work is 1/stride."""
    hardware: Hardware = FITTED
    causes: tuple[Cause, ...] = ()
    """What fails besides single chips: racks, power domains, regions, maintenance, preemption."""
    link: Link = field(default_factory=lambda: Link(latency_s=0.02))
    link_outages: Outages | None = None
    """Of each learner's link to the syncer."""
    costs: SyncerCosts = field(default_factory=lambda: SyncerCosts(merge_s=0.05, persist_s=0.05))
    syncer_outages: Outages | None = None
    fragment_bytes: int = 0
    """What one fragment weighs on the wire; 0 when the link has no limit."""
    download_bytes: int | None = None
    """... on its way down, if that is something else."""
    parties: tuple[Party, ...] = ()
    """Learners one by one, where they are not alike; none: ``chips`` are shared out evenly to equal ones."""
    planned: tuple[Fault, ...] = ()
    """What is known beforehand, such as maintenance: in order of time, besides what is drawn."""
    chip_steps: float | None = None
    """Decoupled learners stop when they have made so many steps, times their chips; None: at the horizon."""
    protocol: ProtocolSetting = field(default_factory=lambda: ProtocolSetting(liveness_s=LIVENESS_S))
    """``num_learners`` is set from ``learners``."""

    def __post_init__(self) -> None:
        for name in ("chips", "learners", "stride"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}", where=f"simulate.{name}", fix="use 1 or more")
        if self.learners > self.chips:
            raise SettingError(
                f"{self.learners} learners on {self.chips} chips",
                where="simulate.learners",
                fix=f"use at most {self.chips}, or more chips",
            )
        self._check_parties()
        for name in ("mtbi_s", "hours", "step_s", "chip_steps"):
            value = getattr(self, name)
            if value is None and name == "chip_steps":
                continue
            if not value > 0 or (name != "mtbi_s" and not math.isfinite(value)):
                raise SettingError(f"{name} is {value}", where=f"simulate.{name}", fix="use more than 0")
        if not 0 <= self.spread <= MAX_SPREAD:
            raise SettingError(f"spread is {self.spread:g}", where="simulate.spread", fix=f"use 0 to {MAX_SPREAD:g}")
        self.pace(0)  # judges the jitter
        for step_s in (self.step_s, *(party.step_s for party in self.parties)):
            if step_s * self.stride > self.horizon_s:
                raise SettingError(
                    f"{self.hours:g} hours have no whole step of {step_s * self.stride:g} s",
                    where="simulate.hours",
                    fix="simulate longer, or use a shorter step",
                )
        if self.parties and not any(party.there_s(self.horizon_s) for party in self.parties):
            raise SettingError(
                f"no learner is there in {self.hours:g} hours", where="simulate.hours", fix="simulate longer"
            )

    def _check_parties(self) -> None:
        if not self.parties:
            return
        names = [party.name for party in self.parties]
        if len(set(names)) < len(names):
            raise SettingError("two learners have one name", where="simulate.parties", fix="name each one once")
        chips = sum(party.chips for party in self.parties)
        if (len(names), chips) != (self.learners, self.chips):
            raise SettingError(
                f"{len(names)} of them with {chips} chips, but {self.learners} learners on {self.chips} chips",
                where="simulate.parties",
                fix="leave learners and chips out",
            )

    @property
    def horizon_s(self) -> float:
        return self.hours * 3600.0

    @property
    def flight_s(self) -> float:
        """From a snapshot to the merged value in the mean, and half a step until it is applied, if everybody answers at
        once: what ``overlap_steps`` has to allow for."""
        down = self.fragment_bytes if self.download_bytes is None else self.download_bytes
        transfers_s = self.link.transfer_s(self.fragment_bytes) + self.link.transfer_s(down)
        costs = self.costs
        merging_s = self.learners * costs.fold_s + costs.merge_s + costs.persist_s + costs.publish_s
        # Progress, ask and announcement are messages besides the two bodies, and the download is asked for.
        return transfers_s + 3 * self.link.latency_s + merging_s + self.step_s / 2

    @property
    def setting(self) -> ProtocolSetting:
        """The protocol's setting for this number of learners."""
        return replace(self.protocol, num_learners=self.learners)

    def faults(self, seed: int) -> Iterator[Fault]:
        """The faults of all chips, without end: the same for every system and every number of learners."""
        chip = Cause(name="chip", mtbi_s=self.mtbi_s, recovery=self.hardware.recovery)
        drawn = draw_faults((chip, *self.causes), chips=self.chips, seed=seed)
        if self.planned:
            drawn = heapq.merge(drawn, self.planned, key=lambda fault: fault.at_s)
        size = self.hardware.elastic.slice_chips
        # A slice may belong to several learners, and takes all of them with it.
        if self.parties:
            shared = self._shared_slices(size)
            return (fault.widened(size, self.chips, shared) for fault in drawn) if shared else drawn
        if self.chips // self.learners >= size:
            return drawn
        return (fault.widened(size, self.chips) for fault in drawn)

    def _shared_slices(self, size: int) -> frozenset[int]:
        """Slices, counted from the first chip, with one of the parties on them that does not fill a slice."""
        shared: set[int] = set()
        first = 0
        for party in self.parties:
            if party.chips < size:
                shared.update((first // size, (first + party.chips - 1) // size))
            first += party.chips
        return frozenset(shared)

    def job(self, learner: int, *, of: int, seed: int, until_s: float | None = None) -> ElasticJob:
        """The job of one learner of ``of``, on its share of the chips, that trains until then; None: to the horizon.

        Its faults end well after that, so that who is away, pauses or steps for ages comes to an end of them.
        """
        end_s = FAULTS_GO_ON * (self.horizon_s if until_s is None else until_s)
        faults = itertools.takewhile(lambda fault: fault.at_s < end_s, self.faults(seed))
        first, end = self.chips * learner // of, self.chips * (learner + 1) // of
        if self.parties and of == len(self.parties):
            first = sum(party.chips for party in self.parties[:learner])
            end = first + self.parties[learner].chips
        return ElasticJob(first_chip=first, chips=end - first, faults=faults, costs=self.hardware.elastic)

    def pace(self, learner: int) -> Pace:
        if self.parties:
            return Pace(step_s=self.parties[learner].step_s, jitter=self.jitter)
        place = learner / (self.learners - 1) if self.learners > 1 else 0.0
        return Pace(step_s=self.step_s * (1.0 + self.spread * place), jitter=self.jitter)
