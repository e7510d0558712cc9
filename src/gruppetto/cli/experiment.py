"""``gruppetto experiment``"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import at_most_one, positional, print_json, read_flags
from gruppetto.errors import DataError, RunFailed, SettingError
from gruppetto.experiments.budget import Budget
from gruppetto.experiments.catalogue import ALL, choose, listed
from gruppetto.experiments.experiment import Experiment, Scale
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.runner import make_rides
from gruppetto.experiments.sharing import Asked, work_of
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import kept_for, table, write
from gruppetto.experiments.texts import several, texts
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.train.corpus import open_corpus
from gruppetto.train.setting import DataSetting

__all__ = ["main"]

MAX_SEEDS, MAX_WORKERS, MAX_MINUTES = 1000, 256, 1_000_000


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Ask again what the paper claims, at a small scale: NAME is an experiment of --list, or all.

    Every run is kept as soon as it is over; a second start goes on, and several at once, on one machine or on several
    that share --out, share the work. Writes a table, a figure and JSON to --out, but not over those of more seeds, or
    with --only of more arms.
    """

    name: Annotated[tuple[str, ...], tyro.conf.Positional, positional("[NAME]")] = ()
    """Which one."""
    list: bool = False
    """Name them all."""
    quick: bool = False
    """A coarse look, within ten minutes on two cores."""
    minutes: float | None = None
    """Begin no run that would not be over by then: seed by seed as far as it goes. The same command goes on."""
    seeds: int | None = None
    """So many, 0 to N − 1; by default what the experiment is made for."""
    only: str = ""
    """A regular expression: arms in whose name it is not found are left out. Pages that tell of others stay."""
    data: Annotated[str, tyro.conf.arg(metavar="SOURCE")] = ""
    """A corpus in place of Python's standard library, as data.corpus has it: package:bible, text:PATH, ..."""
    out: Path = Path("runs/experiments")
    """Where results are kept and looked for."""
    workers: int = 2
    """Runs at a time, each with one thread."""
    show: bool = False
    """Only what is there already: make no run."""
    cache: Path = Path(".cache/experiments")
    """Where data is kept, once made."""
    json: bool = False
    """What was found, as one JSON object, instead of the table."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "experiment")
    name = at_most_one(flags.name, "NAME", "experiment")
    if flags.list or name is None:
        print(listed())
        return 0
    _within("--seeds", flags.seeds, MAX_SEEDS)
    _within("--workers", flags.workers, MAX_WORKERS)
    _within("--minutes", flags.minutes, MAX_MINUTES)
    scale = Scale(quick=flags.quick, seeds=flags.seeds, only=flags.only, cache=flags.cache, data=_corpus(flags.data))
    experiments = choose(name)
    if name == ALL:
        experiments = [experiment for experiment in experiments if experiment.found(scale)]
        if not experiments:
            fix = "use a part of one, such as 'decoupled'"
            raise SettingError(f"{scale.only!r} is in the name of no arm", where="--only", fix=fix)
    stores = {each.name: Store(flags.out / f"{each.name}.jsonl") for each in experiments}
    if flags.show:
        experiments = _with_results(experiments, stores, scale, flags)
    elif scale.data:
        for experiment in experiments:
            experiment.chosen(scale)
        corpus = open_corpus(scale.data, flags.cache)  # what is wrong with it is said here, and it is unpacked once
        for experiment in experiments:
            _refuse_others(experiment, scale, stores[experiment.name], corpus.manifest.sha256)
    for experiment in experiments:
        _say_left_out(experiment.name, stores[experiment.name])
    failed = None
    if not flags.show:
        try:
            _make(name, experiments, stores, scale, flags)
        except RunFailed as error:
            failed = error  # what is there is told all the same
        experiments = _begun(experiments, stores, scale)
    found = {each.name: _tell(Findings(each, scale, stores[each.name]), flags) for each in experiments}
    if failed is not None:
        raise failed
    if flags.json:
        print_json(found if name == ALL else found.get(name, {}))
    return 0


def _make(
    name: str, experiments: Sequence[Experiment], stores: Mapping[str, Store], scale: Scale, flags: Flags
) -> None:
    """Seed by seed, so that whenever it ends there is as much of each as there can be. Raises :class:`RunFailed`."""
    work = list[Asked]()
    for each in experiments:
        rides, store = each.rides(scale), stores[each.name]
        _say_mixed(each.name, several(texts(rides, store), here=_here(rides, store, flags.cache)))
        work += work_of(rides, store, alone=each.alone)
    work.sort(key=lambda asked: asked.ride.seed)
    budget = None if flags.minutes is None else Budget(60 * flags.minutes, MonotonicClock())
    workers = 1 if all(each.alone for each in work) else flags.workers
    make_rides(work, cache=flags.cache, workers=workers, budget=budget, say=partial(_say, name))
    if budget is not None and (left := sum(not each.is_made for each in work)):
        told = f"{left} of {len(work)} runs are left, and the same command goes on"
        _say(name, f"after {flags.minutes:g} min time is up: {told}")


def _with_results(
    experiments: Sequence[Experiment], stores: Mapping[str, Store], scale: Scale, flags: Flags
) -> list[Experiment]:
    """Those of which there is something to show. Raises :class:`DataError` if that is none."""
    found = _begun(experiments, stores, scale)
    if not found:
        what = "this experiment" if len(experiments) == 1 else "any experiment"
        fix = f"leave out --show to make some{'' if flags.quick else ', or look for --quick'}"
        asked = "as asked for"
        if len(experiments) == 1 and (others := len(stores[experiments[0].name])):  # the data depend on the cache
            data = sorted({ride.data for ride in experiments[0].rides(scale)})
            asked += f", of {', '.join(data)} ({others} of other data or settings)"
            fix += f", or bring what those are of into --cache {flags.cache}"
        raise DataError(f"holds no result of {what} {asked}", where=f"--out {flags.out}", fix=fix)
    return found


def _corpus(source: str) -> str:
    """ "" for the default. Raises :class:`SettingError`."""
    DataSetting(corpus=source or Ride().data)
    return "" if source == Ride().data else source


def _refuse_others(experiment: Experiment, scale: Scale, store: Store, sha256: str) -> None:
    """Raises :class:`DataError` where results are of other bytes under the same name, so that none are compared."""
    known: Mapping[str, int] = texts(experiment.rides(scale), store).get(scale.data, {})
    for other in sorted(known.keys() - {sha256}):
        raise DataError(
            f"has results of another {scale.data}: its sha256 was {other[:16]}…, and is {sha256[:16]}…",
            where=str(store.path),
            fix="name another --out, or bring that corpus back",
        )


def _begun(experiments: Sequence[Experiment], stores: Mapping[str, Store], scale: Scale) -> list[Experiment]:
    """Those of which there is any result that is asked for."""
    return [each for each in experiments if any(ride in stores[each.name] for ride in each.rides(scale))]


def _say_left_out(name: str, store: Store) -> None:
    if store.left_out:
        lines = f"lines that are not whole, or of another version: {store.left_out} left out"
        _say(name, f"{store.path}: {lines}")


def _tell(findings: Findings, flags: Flags) -> dict[str, object]:
    if flags.show:  # else it has been said before runs were made
        _say_mixed(findings.experiment.name, several(findings.texts()))
    kept = kept_for(findings, flags.out)
    try:
        written = [] if kept else write(findings, flags.out)
    finally:
        if not flags.json:
            print(table(findings), flush=True)
    if kept:
        told = f"no page written: those in {flags.out} tell of {kept}; name another --out for pages of these alone"
    else:
        told = f"written: {', '.join(map(str, written))}"
    _say(findings.experiment.name, told)
    return findings.as_json()


def _here(rides: Sequence[Ride], store: Store, cache: Path) -> dict[str, str]:
    """The hash of the library that this Python has, where results of another one may be beside what is to be made."""
    ours = [ride for ride in rides if ride.data == Ride().data]
    if not texts(ours, store) or all(ride in store for ride in ours):
        return {}
    return {Ride().data: open_corpus(Ride().data, cache).manifest.sha256}


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)


def _say_mixed(name: str, mixed: str) -> None:
    if mixed:
        told = f"results of several texts under one name are compared: {mixed}"
        _say(name, f"{told}; name another --out to keep them apart")


def _within(flag: str, value: float | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise SettingError(f"is {value:g}", where=f"gruppetto experiment {flag}", fix=f"use 1 to {most}")
