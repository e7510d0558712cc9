"""Goodput and uptime of every system under the same faults: one number a seed, and rows with their spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gruppetto.errors import SettingError
from gruppetto.sim.fleet import Fleet
from gruppetto.sim.party import Party
from gruppetto.sim.rider import RiderSpec
from gruppetto.sim.rivals import data_parallel, diloco, elastic
from gruppetto.sim.scenario import Scenario
from gruppetto.sim.side_by_side import side_by_side
from gruppetto.sim.tally import Tally, spread
from gruppetto.trace.log import TraceWriter

__all__ = ["SYSTEMS", "Outcome", "Row", "fleet_of", "run", "run_all", "tabulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one system made of one sample of faults. What only decoupled learners have is None for the others."""

    system: str
    chips: int
    learners: int
    seed: int
    goodput: float
    uptime: float
    stops: int
    """How often a job or a learner stopped to train."""
    rounds: int | None = None
    participation: float | None = None
    """Learners merged / learners live, over all rounds."""
    merged: float | None = None
    """Tokens merged / tokens trained on."""
    events: int | None = None
    hours: float | None = None
    """Virtual time until ``chip_steps`` were made; None if that was not asked, or not reached."""
    contributions: int | None = None
    """Learners merged, summed over rounds; of a stride, as many as there would be without it."""
    deliveries: int | None = None
    """Live learners, to which every round's values go, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell of the table: means over seeds. ``ci95`` is half the 95 % interval of the goodput."""

    system: str
    chips: int
    learners: int
    goodput: float
    uptime: float
    ci95: float | None
    seeds: int
    participation: float | None = None
    merged: float | None = None
    hours: float | None = None
    contributions: float | None = None
    deliveries: float | None = None


def fleet_of(scenario: Scenario, seed: int, trace: TraceWriter | None = None) -> Fleet:
    """The decoupled learners of a scenario, ready to run."""
    m = scenario.learners
    width = len(str(m - 1))
    parties = scenario.parties or tuple(Party(name=f"learner-{i:0{width}d}", chips=1) for i in range(m))
    specs = [
        RiderSpec(
            name=(name := party.name),
            job=scenario.job(i, of=m, seed=seed),
            pace=scenario.pace(i),
            link=scenario.link,
            joins_s=party.joins_s,
            leaves_s=party.leaves_s,
            cuts=scenario.link_outages.draw(name, seed=seed, horizon_s=scenario.horizon_s)
            if scenario.link_outages
            else (),
        )
        for i, party in enumerate(parties)
    ]
    fleet = Fleet(
        scenario.setting,
        specs,
        seed=seed,
        horizon_s=scenario.horizon_s,
        costs=scenario.costs,
        stride=scenario.stride,
        fragment_bytes=scenario.fragment_bytes,
        download_bytes=scenario.download_bytes,
        outages=scenario.syncer_outages.draw("syncer", seed=seed, horizon_s=scenario.horizon_s)
        if scenario.syncer_outages
        else (),
        trace=trace,
    )
    fleet.stop_at_tokens = None if scenario.chip_steps is None else math.ceil(scenario.chip_steps)
    return fleet


Passed = Callable[[float], None]
"""Hears of the simulated seconds that have passed in a row."""


def _decoupled(
    scenario: Scenario, seed: int, trace: TraceWriter | None = None, passed: Passed = lambda now_s: None
) -> Outcome:
    fleet = fleet_of(scenario, seed, trace)
    events = fleet.run(passed)
    books = fleet.syncer.ledger.in_tokens()
    fleet.tally.absent_chip_s = sum(
        party.chips * (fleet.tally.horizon_s - party.there_s(fleet.tally.horizon_s)) for party in scenario.parties
    )
    if trace is not None:
        # What no report can tell from what learners say: chips that are away make no noise.
        tally = fleet.tally
        told = {"hours": tally.horizon_s / 3600.0, "goodput": tally.goodput, "uptime": tally.uptime}
        trace.note(fleet.engine.now, "syncer", "simulated", **told)
    reached = fleet.stop_at_tokens is not None and fleet.tokens >= fleet.stop_at_tokens
    return replace(
        _outcome("decoupled", scenario, seed, fleet.tally),
        hours=fleet.tally.horizon_s / 3600.0 if reached else None,
        rounds=fleet.rounds,
        participation=fleet.merged / fleet.could_merge if fleet.could_merge else None,
        merged=books["merged"] / books["consumed"] if books["consumed"] else None,
        events=events,
        contributions=fleet.merged * scenario.stride,
        deliveries=fleet.could_merge * scenario.stride,
    )


def _diloco(scenario: Scenario, seed: int) -> Outcome:
    m = scenario.learners
    jobs = [scenario.job(i, of=m, seed=seed) for i in range(m)]
    tally = diloco(
        jobs, step_s=scenario.step_s, sync_period=scenario.protocol.sync_period, horizon_s=scenario.horizon_s
    )
    return _outcome("diloco", scenario, seed, tally)


def _elastic(scenario: Scenario, seed: int) -> Outcome:
    job = scenario.job(0, of=1, seed=seed)
    tally = elastic(job, step_s=scenario.step_s, horizon_s=scenario.horizon_s)
    return _outcome("elastic", scenario, seed, tally)


def _data_parallel(scenario: Scenario, seed: int) -> Outcome:
    tally = data_parallel(
        scenario.faults(seed),
        chips=scenario.chips,
        horizon_s=scenario.horizon_s,
        costs=scenario.hardware.restart,
    )
    return _outcome("data-parallel", scenario, seed, tally)


SYSTEMS: dict[str, Callable[[Scenario, int], Outcome]] = {
    "data-parallel": _data_parallel,
    "elastic": _elastic,
    "diloco": _diloco,
    "decoupled": _decoupled,
}
"""Each takes a scenario and a seed. The first two are one job on all chips, whatever the learners."""
ONE_JOB = ("data-parallel", "elastic")


def run(
    system: str,
    scenario: Scenario,
    seed: int,
    trace: TraceWriter | None = None,
    passed: Passed = lambda now_s: None,
) -> Outcome:
    """One system through one sample of faults. A trace is written of decoupled learners only, and only of them
    ``passed`` hears."""
    if system not in SYSTEMS:
        raise SettingError(f"{system!r} is no system", where="simulate.systems", fix=f"use one of {', '.join(SYSTEMS)}")
    if system in ONE_JOB:
        scenario = replace(scenario, learners=1, parties=())
    return _decoupled(scenario, seed, trace, passed) if system == "decoupled" else SYSTEMS[system](scenario, seed)


def run_all(
    jobs: Sequence[tuple[str, Scenario, int]],
    *,
    processes: int = 1,
    done: Callable[[int, Outcome], None] = lambda job, o: None,
    passed: Callable[[int, float], None] = lambda job, now_s: None,
) -> list[Outcome]:
    """All jobs (system, scenario, seed), the outcomes in the order of the jobs.

    ``done`` hears of each as it comes, ``passed`` of how far each in work has come; both by its place in ``jobs``.
    Whatever ends this early (Ctrl-C, SIGTERM, an error) ends the other processes too, in the middle of a row.
    """
    if processes == 1:
        outcomes: list[Outcome] = []
        for place, job in enumerate(jobs):
            outcomes.append(run(*job, passed=partial(passed, place)))
            done(place, outcomes[-1])
        return outcomes
    return side_by_side(run, jobs, processes=processes, done=done, passed=passed)


def tabulate(outcomes: Iterable[Outcome]) -> list[Row]:
    """One row for each system, number of chips and number of learners, in order of first appearance."""
    groups: dict[tuple[str, int, int], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.system, outcome.chips, outcome.learners), []).append(outcome)
    rows = []
    for (system, chips, learners), same in groups.items():
        goodput, ci95 = spread([o.goodput for o in same])
        rows.append(
            Row(
                system=system,
                chips=chips,
                learners=learners,
                goodput=goodput,
                uptime=spread([o.uptime for o in same])[0],
                ci95=ci95,
                seeds=len(same),
                participation=_mean([o.participation for o in same]),
                merged=_mean([o.merged for o in same]),
                hours=_mean([o.hours for o in same]),
                contributions=_mean([o.contributions for o in same]),
                deliveries=_mean([o.deliveries for o in same]),
            )
        )
    return rows


def _outcome(system: str, scenario: Scenario, seed: int, tally: Tally) -> Outcome:
    return Outcome(
        system=system,
        chips=scenario.chips,
        learners=scenario.learners,
        seed=seed,
        goodput=tally.goodput,
        uptime=tally.uptime,
        stops=tally.stops_seen,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return spread(known)[0] if known else None
