"""``gruppetto chaos PLAN.toml``"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.chaos.real.check import Verdict
from gruppetto.chaos.real.conductor import Conductor
from gruppetto.chaos.real.evidence import gather
from gruppetto.chaos.real.machine import impossible_here
from gruppetto.chaos.real.plan import LivePlan
from gruppetto.chaos.real.reading import read_live_plan
from gruppetto.chaos.real.verdict import judge
from gruppetto.cli.flags import exactly_one, overrides_of, print_json, read_flags
from gruppetto.cli.train import check_data, needed_by, ride_and_report
from gruppetto.errors import DataError, RunFailed, SettingError
from gruppetto.launch.place import holds_run, run_directory
from gruppetto.report.rundir import RIVALS, VERDICT, write_report
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run a real training on this machine while things go wrong as a plan says. Exit 1 when an invariant does not hold.

    The plan is a TOML file with the run's settings and its faults, listed or drawn from a seed; what was drawn is
    printed, and written to RUNDIR/chaos/plan.toml, which can be run again.
    """

    plan: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PLAN.toml")] = ()
    """The plan; see examples/chaos."""
    out: Annotated[str | None, tyro.conf.arg(metavar="RUNDIR")] = None
    """The run directory; runs/chaos-N by default."""
    overwrite: bool = False
    """Delete the run that is in RUNDIR."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUNDIR")] = ()
    """Runs without faults to hold the last loss against; may be given several times."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting of the run; may be given several times."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs."""
    dry: bool = False
    """Print the resolved plan, and run nothing."""
    json: bool = False
    """The verdict, or with --dry the resolved plan, as one JSON object on standard output."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "chaos")
    file = Path(exactly_one(flags.plan, "PLAN.toml", "chaos"))
    plan = _possible(read_live_plan(file, overrides=overrides_of(flags.set, {})))
    if flags.dry:
        if flags.json:
            print_json({"plan": str(file), **plan.as_json()})
        else:
            print(plan)
        return 0
    print(plan, file=sys.stderr)
    compare, cache = [Path(other) for other in flags.compare], Path(flags.cache).expanduser()
    for other in compare:
        if not holds_run(other):
            raise DataError("holds no run", where=f"--compare {other}", fix="name the directory of a run")
    keep = [file, cache, *compare, *needed_by(plan.run)]
    with run_directory(
        flags.out, "chaos", overwrite=flags.overwrite, keep=keep, ready=lambda: check_data(plan.run, cache)
    ) as directory:
        broken = _ride(plan, directory, cache)
        calm = [*compare, *([] if broken else _without_faults(plan, directory, cache))]
        try:
            verdict = _conclude(plan, directory, calm)
        except DataError as nothing:
            # It did not come so far that there is something to judge: what stopped it says more.
            raise broken or nothing from nothing
        if flags.json:
            print_json({"directory": str(directory), **verdict.as_json()})
        else:
            print(f"{verdict}\n{directory}")
    if broken is not None:
        raise broken
    return 0 if verdict.passed else 1


def _possible(plan: LivePlan) -> LivePlan:
    """Without what cannot be had on this machine, if the plan does not mind; said either way."""
    why = impossible_here(plan)
    if not why:
        return plan
    if plan.chaos.impossible == "refuse":
        kind, reason = next(iter(why.items()))
        raise SettingError(
            f"no {kind} here: {reason}",
            where="chaos.standby" if kind == "standby" else "fault.kind",
            fix='leave it out, or say impossible = "skip" in [chaos]',
        )
    for kind, reason in why.items():
        print(f"no {kind} here, left out: {reason}", file=sys.stderr)
    standby = plan.chaos.standby and not why.keys() & {"standby", "takeover"}
    faults = tuple(fault for fault in plan.faults if fault.kind not in why)
    return replace(plan, chaos=replace(plan.chaos, standby=standby), faults=faults)


def _ride(plan: LivePlan, directory: Path, cache: Path) -> RunFailed | None:
    """What stopped the run before its end. There is a verdict on it all the same."""
    from gruppetto.cli.live import LiveView
    from gruppetto.launch.local import Sight, run_local

    conductor = Conductor(plan, directory)
    with conductor.disk(), conductor, LiveView(str(directory), plan.run.rounds) as view:

        def show(sight: Sight) -> None:
            conductor.saw(sight.status)
            view.show(sight)

        try:
            unjudged = run_local(
                plan.run, directory, cache=cache, clock=MonotonicClock(), show=show, routes=conductor.routes
            )
        except RunFailed as broken:
            return broken
    if unjudged:
        print(unjudged, file=sys.stderr)
    return None


def _without_faults(plan: LivePlan, directory: Path, cache: Path) -> list[Path]:
    """The same run, undisturbed, once for each seed of ``[compare]``."""
    calm = []
    for seed in plan.compare.seeds:
        place = directory / RIVALS / f"calm-{seed}"
        place.mkdir(parents=True)
        print(f"for comparison: without faults, seed {seed}", file=sys.stderr)
        ride_and_report(replace(plan.run, train=plan.run.train.seeded(seed)), place, cache=cache)
        calm.append(place)
    return calm


def _conclude(plan: LivePlan, directory: Path, calm: Sequence[Path]) -> Verdict:
    names = [entry.name for entry in plan.run.learners]
    seen = gather(directory, learners=names, liveness_s=plan.run.protocol.liveness_s)
    losses = [loss for place in calm if (loss := _last_loss(place)) is not None]
    verdict = judge(seen, plan.expect, compare=losses)
    (directory / VERDICT).write_text(json.dumps(verdict.as_json(), indent=2) + "\n", encoding="utf-8")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        pass  # the report says that there are no figures
    else:
        from gruppetto.chaos.real.figure import draw_chaos
        from gruppetto.report.figures import save

        save(draw_chaos(seen), directory / "figures", "chaos")
    write_report(directory, [place for place in calm if not place.is_relative_to(directory)])
    return verdict


def _last_loss(directory: Path) -> float | None:
    report = directory / "report.json"
    figures = json.loads(report.read_bytes()) if report.exists() else write_report(directory).figures
    loss = figures["eval"]["loss"]
    return None if loss is None else float(loss)
