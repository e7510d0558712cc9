"""``gruppetto experiment``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import at_most_one, positional, print_json, read_flags
from gruppetto.errors import DataError, SettingError
from gruppetto.experiments.catalogue import ALL, choose, listed
from gruppetto.experiments.experiment import Experiment, Scale
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.runner import make_rides
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import kept_for, table, write
from gruppetto.experiments.texts import several, texts
from gruppetto.train.corpus import open_corpus
from gruppetto.train.setting import DataSetting

__all__ = ["main"]

MAX_SEEDS, MAX_WORKERS = 1000, 256


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
    scale = Scale(quick=flags.quick, seeds=flags.seeds, only=flags.only, cache=flags.cache, data=_corpus(flags.data))
    experiments = choose(name)
    if name == ALL:
        experiments = [experiment for experiment in experiments if experiment.found(scale)]
        if not experiments:
            fix = "use a part of one, such as 'decoupled'"
            raise SettingError(f"{scale.only!r} is in the name of no arm", where="--only", fix=fix)
    if flags.show:
        experiments = _with_results(experiments, scale, flags)
    elif scale.data:
        for experiment in experiments:
            experiment.chosen(scale)
        corpus = open_corpus(scale.data, flags.cache)  # what is wrong with it is said here, and it is unpacked once
        for experiment in experiments:
            _refuse_others(experiment, scale, flags, corpus.manifest.sha256)
    found = {experiment.name: _one(experiment, scale, flags) for experiment in experiments}
    if flags.json:
        print_json(found if name == ALL else found[name])
    return 0


def _with_results(experiments: Sequence[Experiment], scale: Scale, flags: Flags) -> list[Experiment]:
    """Those of which there is something to show. Raises :class:`DataError` if that is none."""
    found, others = [], 0
    for experiment in experiments:
        store = Store(_kept(experiment, flags))
        others += len(store)
        if any(ride in store for ride in experiment.rides(scale)):
            found.append(experiment)
    if not found:
        what = "this experiment" if len(experiments) == 1 else "any experiment"
        fix = f"leave out --show to make some{'' if flags.quick else ', or look for --quick'}"
        asked = "as asked for"
        if others and len(experiments) == 1:  # the data depend on what the cache has
            data = sorted({ride.data for ride in experiments[0].rides(scale)})
            asked += f", of {', '.join(data)} ({others} of other data or settings)"
            fix += f", or bring what those are of into --cache {flags.cache}"
        raise DataError(f"holds no result of {what} {asked}", where=f"--out {flags.out}", fix=fix)
    return found


def _corpus(source: str) -> str:
    """ "" for the default. Raises :class:`SettingError`."""
    DataSetting(corpus=source or Ride().data)
    return "" if source == Ride().data else source


def _refuse_others(experiment: Experiment, scale: Scale, flags: Flags, sha256: str) -> None:
    """Raises :class:`DataError` where results are of other bytes under the same name, so that none are compared."""
    store = Store(_kept(experiment, flags))
    known: Mapping[str, int] = texts(experiment.rides(scale), store).get(scale.data, {})
    for other in sorted(known.keys() - {sha256}):
        raise DataError(
            f"has results of another {scale.data}: its sha256 was {other[:16]}…, and is {sha256[:16]}…",
            where=str(store.path),
            fix="name another --out, or bring that corpus back",
        )


def _kept(experiment: Experiment, flags: Flags) -> Path:
    return flags.out / f"{experiment.name}.jsonl"


def _one(experiment: Experiment, scale: Scale, flags: Flags) -> dict[str, object]:
    store, mixed = Store(_kept(experiment, flags)), ""

    def say(text: str) -> None:
        print(f"{experiment.name}: {text}", file=sys.stderr, flush=True)

    if store.left_out:
        say(f"{store.path}: lines that are not whole, or of another version: {store.left_out} left out")
    if not flags.show:
        workers = 1 if experiment.alone else flags.workers
        rides, alone = experiment.rides(scale), experiment.alone
        mixed = several(texts(rides, store), here=_here(rides, store, flags.cache))
        _say_mixed(mixed, say)
        make_rides(rides, store, cache=flags.cache, workers=workers, alone=alone, say=say)
    findings = Findings(experiment, scale, store)
    if not mixed:
        _say_mixed(several(findings.texts()), say)
    kept = kept_for(findings, flags.out)
    try:
        written = [] if kept else write(findings, flags.out)
    finally:
        if not flags.json:
            print(table(findings), flush=True)
    if kept:
        say(f"no page written: those in {flags.out} tell of {kept}; name another --out for pages of these alone")
    else:
        say(f"written: {', '.join(map(str, written))}")
    return findings.as_json()


def _here(rides: Sequence[Ride], store: Store, cache: Path) -> dict[str, str]:
    """The hash of the library that this Python has, where results of another one may be beside what is to be made."""
    ours = [ride for ride in rides if ride.data == Ride().data]
    if not texts(ours, store) or all(ride in store for ride in ours):
        return {}
    return {Ride().data: open_corpus(Ride().data, cache).manifest.sha256}


def _say_mixed(mixed: str, say: Callable[[str], None]) -> None:
    if mixed:
        say(f"results of several texts under one name are compared: {mixed}; name another --out to keep them apart")


def _within(flag: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise SettingError(f"is {value}", where=f"gruppetto experiment {flag}", fix=f"use 1 to {most}")
