"""``gruppetto simulate``"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gruppetto.cli.flags import at_most_one, print_json, read_flags
from gruppetto.cli.naming import as_typed, said_in
from gruppetto.cli.place_for import make_place_for
from gruppetto.cli.quantities import as_count, counted, timed
from gruppetto.cli.simulate_file import ScenarioFile, read_scenario
from gruppetto.cli.simulate_flags import Flags, at_least_one, chips_of, one_by_one, priced, resized, scenario_of
from gruppetto.cli.simulate_tables import (
    CODECS,
    Carried,
    as_json,
    bandwidth_rows,
    bandwidth_table,
    paper_table,
    plain_table,
    utilisation_curves,
)
from gruppetto.errors import SettingError
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.sim.bandwidth import Traffic
from gruppetto.sim.goodput import ONE_JOB, SYSTEMS, Outcome, run, run_all, tabulate
from gruppetto.sim.load import check_load, expected_steps
from gruppetto.sim.paper import CHIPS, LEARNERS
from gruppetto.sim.scenario import Scenario
from gruppetto.trace.log import TraceWriter

__all__ = ["main"]

TABLES = ("paper", "bandwidth")
TABLE_SEEDS = 3
MOST_SEEDS = 100_000
MANY_STEPS = 1e6
"""In a row: most of a minute."""
SAY_EVERY_S = 5.0


OPTIONS = {
    **{
        f"simulate.{name}": f"--{name.replace('_', '-')}" for name in ("chips", "learners", "hours", "step_s", "spread")
    },
    **{f"simulate.{name}": f"--{name.replace('_', '-')}" for name in ("stride", "scale_down_s", "scale_up_s")},
    "pace.step_s": "--step-s",
    "pace.jitter": "--jitter",
    "run.min_quorum": "--min-quorum",
    "run.num_learners": "--min-quorum",
    "run.num_fragments": "--fragments",
    "run.sync_period": "--sync-period",
    "run.overlap_steps": "--overlap-steps",
}
"""Where the simulator says that a value is, and the option that sets it."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, one_by_one(arguments), "simulate")
    name = at_most_one(flags.scenario, "SCENARIO.toml", "simulate")
    file = ScenarioFile(arguments=()) if name is None else read_scenario(Path(name), Flags)
    if name is not None:
        flags = read_flags(Flags, _together(file, one_by_one(arguments)), "simulate")
    place = Path(name) if name is not None else None
    with as_typed(OPTIONS, said=said_in(arguments), file=place, in_file=said_in(file.arguments)):
        return _simulate(flags, file)


def _simulate(flags: Flags, file: ScenarioFile) -> int:
    if flags.table not in (None, *TABLES):
        fix = f"use {' or '.join(TABLES)}"
        raise SettingError(f"{flags.table!r} is no table", where="--table", fix=fix)
    if flags.figure is not None:
        from gruppetto.report.clusters import check_kind

        make_place_for(flags.figure)
        check_kind(flags.figure)
    if flags.table == "bandwidth":
        return _bandwidth(flags)
    scenario = file.applied(priced(scenario_of(flags), flags))
    jobs = _table_jobs(flags, scenario) if flags.table else _jobs(flags, scenario)
    for system, one, _ in jobs:
        # Refused before anything has been simulated.
        check_load(system, one)
        if system == "decoupled":
            _ = one.setting
    if flags.trace is not None:
        outcomes = [_traced(jobs, flags.trace)]
    else:
        _say_what_takes_long(jobs)
        _say_what_is_under_way(jobs)
        outcomes = run_all(
            jobs,
            processes=at_least_one(flags.processes, "--processes"),
            done=(progress := Progress(jobs, MonotonicClock())).done,
            passed=progress.passed,
        )
    rows = tabulate(outcomes)
    carried = Carried(
        parameters=as_count(flags.parameters, where="--parameters"), sync_period=scenario.protocol.sync_period
    )
    if flags.figure is not None:
        from gruppetto.report.clusters import draw_goodput, save

        save(draw_goodput(rows), flags.figure)
    if flags.json:
        print_json({"rows": [as_json(row, carried) for row in rows]})
    else:
        print(paper_table(rows) if flags.table else plain_table(rows, carried))
    return 0


def _jobs(flags: Flags, base: Scenario) -> list[tuple[str, Scenario, int]]:
    systems = flags.systems or ("data-parallel", "elastic", "decoupled")
    if flags.trace is not None:
        systems = ("decoupled",)
    learners = [as_count(m, where="--learners") for m in flags.learners or ("8",)]
    all_chips = list(map(chips_of, flags.chips or ("1.2M",)))
    if base.parties:
        if flags.learners or flags.chips:
            fix = "leave --learners and --chips out"
            raise SettingError("the learners stand in the scenario", where="gruppetto simulate", fix=fix)
        learners, all_chips = [base.learners], [base.chips]
    for system in systems:
        if system not in SYSTEMS:
            raise SettingError(f"{system!r} is no system", where="--systems", fix=f"use one of {', '.join(SYSTEMS)}")
    return [
        (system, _of_size(resized(base, flags, chips), system, m), flags.seed + seed)
        for chips in all_chips
        for system in systems
        for m in (learners[:1] if system in ONE_JOB else learners)
        for seed in range(at_least_one(flags.seeds if flags.seeds is not None else 1, "--seeds", most=MOST_SEEDS))
    ]


def _of_size(base: Scenario, system: str, learners: int) -> Scenario:
    """A job on all chips knows of no learners."""
    if system in ONE_JOB:
        return replace(base, learners=1, parties=())
    return replace(base, learners=learners)


def _together(file: ScenarioFile, given: Sequence[str]) -> list[str]:
    """The file's flags, but for those that the command line says too: of a list, it says the whole list."""
    said = {argument.partition("=")[0] for argument in given if argument.startswith("--")}
    kept = [pair for pair in zip(file.arguments[::2], file.arguments[1::2], strict=True) if pair[0] not in said]
    return [*(word for pair in kept for word in pair), *given]


def _table_jobs(flags: Flags, base: Scenario) -> list[tuple[str, Scenario, int]]:
    seeds = at_least_one(flags.seeds if flags.seeds is not None else TABLE_SEEDS, "--seeds", most=MOST_SEEDS)
    grid = [("data-parallel", 1), ("elastic", 1), *(("decoupled", m) for m in LEARNERS)]
    return [
        (system, replace(resized(base, flags, chips), learners=m), flags.seed + seed)
        # The dearest first, so that several processes end together.
        for system, m in reversed(grid)
        for chips in (map(chips_of, flags.chips) if flags.chips else CHIPS)
        for seed in range(seeds)
    ]


def _bandwidth(flags: Flags) -> int:
    """What the links between sites must carry."""
    scenario = scenario_of(flags)
    traffics = [
        Traffic(
            parameters=as_count(flags.parameters, where="--parameters"),
            sites=as_count(sites, where="--sites"),
            step_s=scenario.step_s,
            codec=codec,
            sync_period=flags.sync_period,
            num_fragments=flags.fragments,
        )
        for sites in flags.sites or ("2", "8")
        for codec in CODECS
    ]
    if flags.figure is not None:
        from gruppetto.report.clusters import draw_utilisation, save

        save(draw_utilisation(utilisation_curves(traffics)), flags.figure)
    rows = bandwidth_rows(traffics)
    if flags.json:
        print_json({"rows": rows})
    else:
        print(bandwidth_table(rows))
    return 0


def _traced(jobs: Sequence[tuple[str, Scenario, int]], path: Path) -> Outcome:
    if len(jobs) != 1:
        raise SettingError(
            f"a trace of {len(jobs)} runs",
            where="gruppetto simulate: --trace",
            fix="give one --chips, one --learners and one seed",
        )
    from gruppetto.report.rundir import TRACE

    ((system, scenario, seed),) = jobs
    if path.is_dir() or path.suffix != ".jsonl":
        path = path / TRACE
    if path.exists():
        raise SettingError("is there already", where=str(path), fix="name another file")
    riders = f"{scenario.learners} learner{'s' * (scenario.learners > 1)}"
    what = {"simulated": f"{riders} on {counted(scenario.chips)} chips", "stride": scenario.stride}
    with TraceWriter(path, what) as trace:
        return run(system, scenario, seed, trace)


def _say_what_takes_long(jobs: Sequence[tuple[str, Scenario, int]]) -> None:
    """Before it is begun, and only where it can be made shorter."""
    steps = max((expected_steps(system, one) for system, one, _ in jobs if system == "decoupled"), default=0.0)
    if steps > MANY_STEPS and all(one.stride == 1 for _, one, _ in jobs):
        print(
            f"note: a row has up to {steps:.2g} steps, which takes minutes; --stride 16 goes through about as many "
            "times faster, with the same goodput",
            file=sys.stderr,
            flush=True,
        )


def _say_what_is_under_way(jobs: Sequence[tuple[str, Scenario, int]]) -> None:
    """Where fragments are longer under way than learners allow for, rounds close without those who would have come."""
    priced_ones = [one for system, one, _ in jobs if system == "decoupled" and one.fragment_bytes]
    if not priced_ones:
        return
    longest = max(priced_ones, key=lambda one: one.flight_s)
    steps, allowed = longest.flight_s / longest.step_s, longest.protocol.overlap_steps
    enough = min(math.ceil(steps), longest.protocol.sync_period - 1)
    if steps > allowed < enough:
        _say(
            f"note: a contribution is under way for about {steps:.1f} steps, and learners allow for {allowed}: rounds "
            f"may close without most of them; --overlap-steps {enough} is what gruppetto plan would set"
        )


class Progress:
    """What is done, on standard error, and how much longer the rest takes: by the steps of decoupled rows."""

    def __init__(self, jobs: Sequence[tuple[str, Scenario, int]], clock: Clock) -> None:
        self._jobs, self._clock = jobs, clock
        self._steps = [expected_steps(system, one) if system == "decoupled" else 0.0 for system, one, _ in jobs]
        self._shares = [0.0] * len(jobs)
        """Of each row: how much of it is done."""
        self._count = 0
        self._began_s = self._said_s = clock.now()

    def done(self, job: int, outcome: Outcome) -> None:
        """A row is there."""
        self._count += 1
        self._shares[job] = 1.0
        self._said_s = self._clock.now()
        _say(f"{self._count}/{len(self._jobs)}: {_named(outcome)}: goodput {outcome.goodput:.1%}{self._left()}")

    def passed(self, job: int, now_s: float) -> None:
        """A row in work has come to this virtual time: said every few seconds."""
        horizon_s = self._jobs[job][1].horizon_s
        if self._shares[job] < 1.0:
            self._shares[job] = min(1.0, now_s / horizon_s)
        if self._clock.now() < self._said_s + SAY_EVERY_S or self._count == len(self._jobs):
            return
        self._said_s = self._clock.now()
        _say(f"  {timed(now_s)} of {timed(horizon_s)} are simulated{self._left()}")

    def _left(self) -> str:
        done = sum(share * steps for share, steps in zip(self._shares, self._steps, strict=True))
        left_s = (self._clock.now() - self._began_s) * (sum(self._steps) / done - 1) if done else 0.0
        return f", about {timed(float(round(left_s)))} left" if left_s >= SAY_EVERY_S else ""


def _named(outcome: Outcome) -> str:
    who = f"{outcome.system}, M = {outcome.learners}" if outcome.system not in ONE_JOB else outcome.system
    return f"{who}, {counted(outcome.chips)} chips, seed {outcome.seed}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
