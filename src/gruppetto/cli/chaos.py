"""``gruppetto chaos PLAN.toml``"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import tyro

from gruppetto.chaos.real.check import Verdict
from gruppetto.chaos.real.machine import impossible_here
from gruppetto.chaos.real.plan import LivePlan
from gruppetto.chaos.real.reading import read_live_plan
from gruppetto.chaos.real.seeds import as_table, spread
from gruppetto.cli.chaos_run import disturb
from gruppetto.cli.flags import exactly_one, overrides_of, positional, print_json, read_flags
from gruppetto.cli.train import check_data, needed_by
from gruppetto.errors import DataError, SettingError, Stopped
from gruppetto.home import at_home
from gruppetto.launch.place import SEEDS, holds_run, run_directory

__all__ = ["main"]

IF_EMPTY = "write what goes wrong, [[fault]] or [rates], and the run's settings; see examples/chaos"
"""Of settings alone a plan may be: then nothing goes wrong. Of nothing at all it is another file that was meant."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run a real training on this machine while things go wrong as a plan says. Exit 1 when an invariant does not hold.

    The plan is a TOML file with the run's settings and its faults, listed or drawn from a seed; what was drawn is
    printed, and written to RUNDIR/chaos/plan.toml, which can be run again.
    """

    plan: Annotated[tuple[str, ...], tyro.conf.Positional, positional("PLAN.toml")] = ()
    """The plan; see examples/chaos."""
    out: Annotated[str | None, tyro.conf.arg(metavar="RUNDIR")] = None
    """The run directory; runs/chaos-N by default."""
    overwrite: bool = False
    """Delete the run that is in RUNDIR."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUNDIR")] = ()
    """Runs without faults to hold the last loss against; may be given several times."""
    seeds: Annotated[tuple[tuple[int, ...], ...], tyro.conf.arg(metavar="S [S ...]")] = ()
    """One whole run for each seed, after the plan's name: its own faults, weights, data and run without faults."""
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
    file, overrides = Path(exactly_one(flags.plan, "PLAN.toml", "chaos")), overrides_of(flags.set, {})
    seeds = _seeds(flags)
    read = partial(read_live_plan, file, overrides=overrides, if_empty=IF_EMPTY)
    if seeds:
        plans = {seed: _possible(read(seed=seed)) for seed in seeds}
    else:
        plan = _possible(read())
        plans = {plan.chaos.seed: plan}
    if flags.dry:
        _say(file, plans, json=flags.json, several=bool(seeds))
        return 0
    compare, cache = [Path(other) for other in flags.compare], at_home(flags.cache)
    for other in compare:
        if not holds_run(other):
            raise DataError("holds no run", where=f"--compare {other}", fix="name the directory of a run")
    keep = [file, cache, *compare, *(path for plan in plans.values() for path in needed_by(plan.run))]

    def check() -> None:
        for plan in plans.values():
            check_data(plan.run, cache)

    with run_directory(flags.out, "chaos", overwrite=flags.overwrite, keep=keep, ready=check) as directory:
        if seeds:
            return _run_seeds(plans, directory, cache=cache, compare=compare, json=flags.json)
        (plan,) = plans.values()
        print(plan, file=sys.stderr)
        run = disturb(plan, directory, cache=cache, compare=compare)
        if flags.json:
            print_json({"directory": str(directory), **run.verdict.as_json()})
        else:
            print(f"{run.verdict}\n{directory}")
    if run.broken is not None:
        raise run.broken
    return 0 if run.verdict.passed else 1


def _run_seeds(
    plans: Mapping[int, LivePlan], directory: Path, *, cache: Path, compare: Sequence[Path], json: bool
) -> int:
    """One run after the other; what is known so far is in seeds.json, also when somebody stops it."""
    verdicts: dict[int, Verdict] = {}
    file = directory / SEEDS
    file.write_text("{}\n", encoding="utf-8")  # from now on this is a directory that --overwrite may clear
    for seed, plan in plans.items():
        print(f"seed {seed}:\n{plan}", file=sys.stderr)
        with run_directory(str(directory / f"seed-{seed}"), "chaos", overwrite=False) as place:
            run = disturb(plan, place, cache=cache, compare=compare)
        if isinstance(run.broken, Stopped):
            raise run.broken
        verdicts[seed] = run.verdict
        print(f"seed {seed}:\n{run.verdict}", file=sys.stderr)
        file.write_text(dumps(_as_json(directory, verdicts), indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(_as_json(directory, verdicts))
    else:
        print(f"{as_table(verdicts)}\n{directory}")
    return 0 if all(verdict.passed for verdict in verdicts.values()) else 1


def _as_json(directory: Path, verdicts: Mapping[int, Verdict]) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "passed": all(verdict.passed for verdict in verdicts.values()),
        "seeds": {str(seed): verdict.as_json() for seed, verdict in verdicts.items()},
        "figures": {name: figure.as_json() for name, figure in spread(verdicts).items()},
    }


def _seeds(flags: Flags) -> list[int]:
    seeds = [seed for given in flags.seeds for seed in given]
    for seed in seeds:
        if seeds.count(seed) > 1 or seed < 0:
            raise SettingError(f"holds {seed}", where="--seeds", fix="name each seed once, 0 or more")
    return seeds


def _say(file: Path, plans: Mapping[int, LivePlan], *, json: bool, several: bool) -> None:
    """What would be done."""
    if json and several:
        print_json({"plan": str(file), "seeds": {str(seed): plan.as_json() for seed, plan in plans.items()}})
        return
    for seed, plan in plans.items():
        if json:
            print_json({"plan": str(file), **plan.as_json()})
        else:
            print(f"seed {seed}:\n{plan}" if several else plan)


def _possible(plan: LivePlan) -> LivePlan:
    """Without what cannot be had on this machine, if the plan does not mind; said either way."""
    why = impossible_here(plan)
    if not why:
        return plan
    if plan.chaos.impossible == "refuse":
        kind, reason = next(iter(why.items()))
        raise SettingError(
            f"no {kind} here: {reason}",
            where="fault.kind",
            fix='leave it out, or say impossible = "skip" in [chaos]',
        )
    for kind, reason in why.items():
        print(f"no {kind} here, left out: {reason}", file=sys.stderr)
    return replace(plan, faults=tuple(fault for fault in plan.faults if fault.kind not in why))
