"""The best way to train on a cluster, among what the library has; and what would change that (``gruppetto plan``).

Every choice is priced (:mod:`~gruppetto.sim.choice`), with the goodput of an elastic job and the loss that evidence
tells of (:mod:`~gruppetto.sim.quality`). The best one is then simulated with the cores that ship, for what a formula
does not know: who takes part, and at which quorum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gruppetto.errors import SettingError
from gruppetto.numerics.codec import CASTS, CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.sim.bandwidth import Traffic, demand
from gruppetto.sim.choice import Choice, Needs, needs_of
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.goodput import Outcome, run
from gruppetto.sim.load import expected_faults
from gruppetto.sim.network import Link
from gruppetto.sim.quality import CODEC_LOSS, DOWNLINK_LOSS
from gruppetto.sim.ways_out import Way, ways_out

__all__ = ["Change", "Plan", "Priced", "changes", "overlap_steps", "plan", "ranked", "simulate"]

LEARNERS = (1, 2, 4, 8, 16, 32, 64, 128)
PERIODS = (24, 48, 96, 192, 384)
MOST_FRAGMENTS = 96
"""Tensors stay whole: beyond, the largest of them are the fragments."""
WORDS = {
    "gbit_s": "links of {} Gbit/s",
    "syncer_gbit_s": "{} Gbit/s at the syncer",
    "step_s": "steps of {} s",
    "syncer_gib": "{} GiB for the syncer",
    "host": "a host for the syncer that is {} times as fast",
    "disk": "a disk for the syncer that is {} times as fast",
}
"""Of a way out."""
BOUNDARIES = 8_000
"""Steps of all learners together that one simulation takes: a second or so."""
LEAST_STEPS = 300
WORTH = 0.005
"""Differences of value below are none: the simpler choice is made."""
WORTH_A_QUORUM = 0.05
"""More of the learners in a round, for which a quorum above 1 is chosen."""
FARTHEST = 256.0
"""So many times more or less is looked at for a change of mind."""
MOST_FAULTS = 1e7
"""Of a day, or of the longest steps that are looked at: all chips there are see less."""
SENSIBLE = {"step_s": (1e-6, 1e6), "gbit_s": (1e-6, 1e9), "syncer_gbit_s": (1e-6, 1e9), "syncer_gib": (1e-6, 1e9)}
"""What a cluster may have; beyond, nothing that is said about it would mean anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A choice with what it needs."""

    choice: Choice
    needs: Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """At ``at`` and beyond (below, if that is less than what the cluster has), another choice is better."""

    field: str
    has: float
    at: float
    to: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The best choice; ``seen`` is what its simulation showed, by quorum, the chosen one first."""

    cluster: Cluster
    best: Priced
    second: Priced | None
    """The best one with another number of learners; None if there is none that can be done."""
    one_job: float
    """The goodput of one elastic job on all chips."""
    seen: tuple[tuple[int, Outcome], ...]
    simulated_s: float
    changes: tuple[Change, ...]

    @property
    def overlap_steps(self) -> int:
        """τ."""
        return overlap_steps(self.best)

    @property
    def rounds_in_flight(self) -> int:
        """D."""
        return self.best.needs.rounds_in_flight

    @property
    def interval_s(self) -> float:
        """From one round to the next, as simulated."""
        rounds = self.seen[0][1].rounds
        return self.simulated_s / rounds if rounds else math.inf

    @property
    def plain_is_better(self) -> bool:
        """Than what was chosen, among the numbers of learners that were asked for."""
        return self.best.choice.learners == 1 or self.one_job_value > self.best.needs.value + WORTH

    @property
    def one_job_value(self) -> float:
        """What one elastic job on all chips is worth: no loss, but where sites are apart it waits for their links."""
        cluster = self.cluster
        if cluster.sites is None or cluster.sites == 1:
            return self.one_job
        traffic = Traffic(parameters=cluster.parameters, sites=cluster.sites, step_s=cluster.step_s)
        return self.one_job * demand("data-parallel", traffic, cluster.gbit_s).utilisation


def plan(
    cluster: Cluster,
    *,
    learners: Sequence[int] | None = None,
    boundaries: int = BOUNDARIES,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Search, simulate, and look around. ``learners`` restricts M. Raises :class:`SettingError` if nothing can be done.

    ``boundaries`` steps, of all learners together, are simulated for each quorum. The same cluster gives the same plan.
    """
    _refuse_absurd(cluster)
    progress("pricing")
    order = ranked(cluster, learners)
    best = order[0]
    if best.needs.problems:
        progress("looking for what would make it possible")
        said = [_in_words(way) for way in ways_out(cluster, learners, _first)]
        fix = f"use {', or '.join(said)}" if said else "train one job within one site: nothing near this is enough"
        raise SettingError(f"cannot be done: {'; '.join(best.needs.problems)}", where="plan", fix=fix)
    second = next((p for p in order if p.choice.learners != best.choice.learners and not p.needs.problems), None)
    horizon_s = _horizon_s(cluster, best, boundaries)
    seen: list[tuple[int, Outcome]] = []
    for quorum in _quorums(best.choice.learners):
        progress(f"simulating M = {best.choice.learners}, K = {quorum}")
        at = replace(best, choice=replace(best.choice, min_quorum=quorum))
        seen.append((quorum, simulate(cluster, at, horizon_s)))
    most = max(outcome.participation or 0.0 for _, outcome in seen)
    # The smallest quorum that will do: a larger one stands still the sooner.
    seen.sort(key=lambda each: (each[1].participation or 0.0) < most - WORTH_A_QUORUM)
    best = replace(best, choice=replace(best.choice, min_quorum=seen[0][0]))
    progress("looking for what would change this")
    return Plan(
        cluster=cluster,
        best=best,
        second=second,
        one_job=cluster.goodput(1),
        seen=tuple(seen),
        simulated_s=horizon_s,
        changes=tuple(changes(cluster, best.choice, learners)),
    )


def _refuse_absurd(cluster: Cluster) -> None:
    for name, (least, most) in SENSIBLE.items():
        value = getattr(cluster, name)
        if value is not None and not least <= value <= most:
            raise SettingError(f"is {value:g}", where=f"plan.{name}", fix=f"use {least:g} to {most:g}")
    faults = expected_faults("elastic", cluster.scenario(1))
    if faults > MOST_FAULTS:
        raise SettingError(
            f"{faults:.3g} interruptions in {cluster.scenario(1).hours:.3g} hours, more than {MOST_FAULTS:g}",
            where="plan",
            fix="use a longer --mtbi-years, or fewer --chips",
        )


def _first(cluster: Cluster, learners: Sequence[int] | None) -> tuple[Choice, tuple[str, ...]]:
    best = ranked(cluster, learners)[0]
    return best.choice, best.needs.problems


def _in_words(way: Way) -> str:
    if way.learners is not None:
        return f"other numbers of learners, such as {way.learners}"
    return " with ".join(WORDS[field].format(_rounded_up(least)) for field, least in way.least)


def _rounded_up(value: float) -> str:
    """To two digits, never less than the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.6g}"


def ranked(cluster: Cluster, learners: Sequence[int] | None = None) -> list[Priced]:
    """All choices, the best first; what cannot be done last. Of equal ones the one nearest to the defaults."""
    priced = [Priced(choice=choice, needs=needs_of(cluster, choice)) for choice in _choices(cluster, learners)]
    return sorted(priced, key=_rank)


def overlap_steps(priced: Priced) -> int:
    """τ: what the flight takes, 2 at least, and less than H."""
    return min(max(2, math.ceil(priced.needs.flight_steps)), priced.choice.sync_period - 1)


def simulate(cluster: Cluster, priced: Priced, horizon_s: float) -> Outcome:
    """The cores that ship, with the prices of this choice."""
    choice, needs = priced.choice, priced.needs
    elements = -(-cluster.parameters // choice.num_fragments)
    steps_down = DOWNLINKS[choice.downlink].steps is not None
    costs = cluster.machine.costs(fragment_elements=elements, steps_down=steps_down)
    scenario = cluster.scenario(choice.learners)
    scenario = replace(
        scenario,
        hours=horizon_s / 3600,
        link=Link(latency_s=cluster.machine.latency_s, bytes_per_s=needs.width_bytes_s),
        fragment_bytes=needs.upload_bytes,
        download_bytes=needs.download_bytes,
        costs=replace(costs, persist_s=needs.persist_s),
        protocol=replace(
            scenario.protocol,
            num_learners=choice.learners,
            min_quorum=choice.min_quorum,
            num_fragments=choice.num_fragments,
            sync_period=choice.sync_period,
            overlap_steps=overlap_steps(priced),
            rounds_in_flight=needs.rounds_in_flight,
        ),
    )
    return run("decoupled", scenario, seed=0)


def changes(cluster: Cluster, choice: Choice, learners: Sequence[int] | None = None) -> Iterator[Change]:
    """What would be chosen with other links, failures and steps: the nearest change in either direction."""
    for field in ("gbit_s", "mtbi_s", "step_s"):
        has = getattr(cluster, field)
        if math.isinf(has):
            continue
        for up in (True, False):
            found = _nearest(cluster, choice, field, up, learners)
            if found is not None:
                yield found


def _nearest(cluster: Cluster, choice: Choice, field: str, up: bool, learners: Sequence[int] | None) -> Change | None:
    """Doubles, or halves, until another choice is better by more than a trifle; then closes in."""
    has = getattr(cluster, field)

    def other(factor: float) -> Choice | None:
        there = replace(cluster, **{field: has * factor if up else has / factor})
        if expected_faults("elastic", there.scenario(1)) > MOST_FAULTS:
            return None  # nobody has such a cluster
        first = ranked(there, learners)[0]
        if first.needs.problems or _same(first.choice, choice):
            return None
        stays = needs_of(there, replace(choice, min_quorum=1))
        return first.choice if stays.problems or first.needs.value > stays.value + WORTH else None

    low, high, to = 1.0, 1.0, None
    while to is None and high < FARTHEST:
        low, high = high, 2 * high
        to = other(high)
    if to is None:
        return None
    for _ in range(4):
        middle = math.sqrt(low * high)
        nearer = other(middle)
        low, high, to = (middle, high, to) if nearer is None else (low, middle, nearer)
    return Change(field=field, has=has, at=has * high if up else has / high, to=to)


def _choices(cluster: Cluster, learners: Sequence[int] | None) -> Iterator[Choice]:
    sites = cluster.sites or 1
    counts = learners or [m for m in sorted({m * sites for m in LEARNERS}) if m <= min(cluster.chips, 4096)]
    for m in counts:
        # Learners of many ranks answer in any encoding, and follow no steps.
        alone = m >= cluster.chips
        ways_down = DOWNLINKS if alone and cluster.machine.hosts == 1 else CASTS
        for period in PERIODS:
            for uplink in (name for name in CODECS if name in CODEC_LOSS):
                for downlink in (name for name in ways_down if name in DOWNLINK_LOSS):
                    for durability in ("round", "interval"):
                        yield Choice(
                            learners=m,
                            sync_period=period,
                            num_fragments=min(period, MOST_FRAGMENTS),
                            uplink=uplink,
                            downlink=downlink,
                            durability=durability,
                        )


def _rank(priced: Priced) -> tuple[object, ...]:
    choice, needs = priced.choice, priced.needs
    return (
        bool(needs.problems),
        len(needs.problems),
        -round(needs.value / WORTH),
        choice.learners,
        choice.durability != "round",
        choice.downlink != "fp32",
        choice.uplink != "bf16",
        choice.sync_period,
        -needs.value,
    )


def _same(one: Choice, other: Choice) -> bool:
    if one.learners == other.learners == 1:
        return True  # how one job would synchronise with nobody does not matter
    return replace(one, min_quorum=1) == replace(other, min_quorum=1)


def _quorums(learners: int) -> tuple[int, ...]:
    return (1,) if learners < 4 else (1, learners // 2)


def _horizon_s(cluster: Cluster, priced: Priced, boundaries: int) -> float:
    """So many steps as there is patience for."""
    return cluster.step_s * max(LEAST_STEPS, boundaries // priced.choice.learners)
