"""``gruppetto train``"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import at_most_one, overrides_of, positional, print_json, read_flags
from gruppetto.cli.naming import as_typed, said_in
from gruppetto.cli.parent import end_with_parent
from gruppetto.cli.workers import workers_of
from gruppetto.config import RunConfig, load_run
from gruppetto.config.write import write_run
from gruppetto.errors import DataError, GruppettoError, RunFailed, SettingError, UserError
from gruppetto.home import at_home
from gruppetto.launch.engine import Engine
from gruppetto.launch.place import clear, has_begun, holds_run, run_directory
from gruppetto.launch.strike import Strike
from gruppetto.report.rundir import Report, write_report
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.train.archive import path_of

__all__ = ["Flags", "check_data", "main", "needed_by", "ride_and_report", "run_rival"]

PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run a syncer and learners on this machine, or a rival of decoupled training, from beginning to end."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, positional("[RUN.toml]")] = ()
    """The run's settings; without it the defaults hold."""
    learners: Annotated[str | None, tyro.conf.arg(metavar="M")] = None
    """How many learners."""
    rounds: Annotated[str | None, tyro.conf.arg(metavar="T")] = None
    """The last round."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="S")] = None
    """Of the first weights and the order of the data."""
    mode: Annotated[str | None, tyro.conf.arg(metavar="MODE")] = None
    """decoupled, single, data-parallel or diloco."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Begin with named settings (closest, demo) instead of the defaults."""
    shards: Annotated[str | None, tyro.conf.arg(metavar="S")] = None
    """How many syncers serve the run together, each with fragments of its own."""
    standby: bool = False
    """Keep a second syncer in waiting, which takes over when the first one dies."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting; may be given several times."""
    out: Annotated[str | None, tyro.conf.arg(metavar="RUNDIR")] = None
    """The run directory; runs/MODE-N by default."""
    overwrite: bool = False
    """Delete the run that is in RUNDIR."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUNDIR")] = ()
    """Other runs whose loss is drawn beside this one's; may be given several times."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs."""
    json: bool = False
    """The report as one JSON object on standard output."""
    virtual: bool = False
    """In virtual time on this machine, the same every time. RUN.toml may be a chaos plan, with [virtual], [[guest]]."""
    workers: Annotated[str, tyro.conf.arg(metavar="N")] = "1"
    """Processes that train a virtual run; what comes out does not depend on them."""
    follow_parent: bool = False
    """Stop when standard input closes."""


OPTIONS = {
    "run.num_learners": "--learners",
    "run.rounds": "--rounds",
    "run.mode": "--mode",
    "train.seed": "--seed",
    "model.seed": "--seed",
    "syncer.shards": "--shards",
    "preset": "--preset",
}
"""Settings that have a flag of their own."""


def main(arguments: Sequence[str]) -> int:
    flags, said = read_flags(Flags, arguments, "train"), said_in(arguments)
    if flags.follow_parent:
        end_with_parent()
    with as_typed({setting: option for setting, option in OPTIONS.items() if option in said}):
        return _train(flags)


def _train(flags: Flags) -> int:
    overrides = overrides_of(
        flags.set,
        {
            "run.num_learners": flags.learners,
            "run.rounds": flags.rounds,
            "run.mode": flags.mode,
            "train.seed": flags.seed,
            "model.seed": flags.seed,
            "syncer.shards": flags.shards,
            "launch.standby": "true" if flags.standby else None,
        },
    )
    file = at_most_one(flags.run, "RUN.toml", "train")
    if flags.virtual:
        return _ride_virtually(flags, Path(file) if file is not None else None, overrides)
    config = load_run(Path(file) if file is not None else None, preset=flags.preset, overrides=overrides)
    compare, cache = [Path(other) for other in flags.compare], at_home(flags.cache)
    for other in compare:
        if not holds_run(other):
            raise DataError(
                "holds no run", where=f"--compare {other}", fix="name the directory of a run that has begun"
            )
    keep = [*([Path(file)] if file else []), cache, *compare, *needed_by(config)]
    with run_directory(
        flags.out, config.mode, overwrite=flags.overwrite, keep=keep, ready=lambda: check_data(config, cache)
    ) as directory:
        report = ride_and_report(config, directory, cache=cache, compare=compare)
    if config.mode == "decoupled" and config.rounds < config.protocol.sync_period:
        print(
            f"note: {config.rounds} rounds at a sync_period of {config.protocol.sync_period} leave fragments that were "
            "never merged; use more rounds or a smaller run.sync_period",
            file=sys.stderr,
        )
    if flags.json:
        print_json(report.figures)
    else:
        print(f"{report.text}\n{directory}")
    return 0


def _ride_virtually(flags: Flags, file: Path | None, overrides: dict[str, object]) -> int:
    from gruppetto.cli.virtual import read_virtual_plan, ride_virtually

    workers = workers_of(flags.workers)
    asked = read_virtual_plan(file, preset=flags.preset, overrides=overrides)
    if asked.run.syncer.shards > 1:
        raise SettingError(
            f"is {asked.run.syncer.shards}, and a virtual run has one syncer",
            where="syncer.shards",
            fix="use 1, or leave out --virtual",
        )
    compare, cache = [Path(other) for other in flags.compare], at_home(flags.cache)
    keep = [*([file] if file else []), cache, *compare, *needed_by(asked.run)]
    with run_directory(
        flags.out, "virtual", overwrite=flags.overwrite, keep=keep, ready=lambda: check_data(asked.run, cache)
    ) as directory:
        report = ride_virtually(asked, directory, cache=cache, workers=workers, compare=compare)
    if flags.json:
        print_json(report.figures)
    else:
        print(f"{report.text}\n{directory}")
    return 0


def ride_and_report(
    config: RunConfig,
    directory: Path,
    *,
    cache: Path,
    compare: Sequence[Path] = (),
    title: str = "",
    strike: Strike | None = None,
    engine: Engine | None = None,
) -> Report:
    """Run ``config`` in a fresh directory, and write its report. ``strike`` is a kill on purpose; ``engine`` runs the
    processes elsewhere.

    A run that fails leaves what it recorded; one that never began leaves nothing. Raises :class:`RunFailed` after the
    report when the last weights could not be judged.
    """
    if config.mode == "decoupled" and config.protocol.notice:
        print(f"note: {config.protocol.notice}", file=sys.stderr, flush=True)
    unjudged = ""
    try:
        unjudged = _ride(config, directory, cache=cache, title=title or str(directory), strike=strike, engine=engine)
    except GruppettoError as error:
        never_started = not (directory / "processes.json").exists()
        if (isinstance(error, UserError) or never_started) and not has_begun(directory):
            clear(directory)
        raise
    report = write_report(directory, compare)
    if unjudged:
        raise RunFailed(unjudged)
    return report


def _ride(
    config: RunConfig, directory: Path, *, cache: Path, title: str, strike: Strike | None, engine: Engine | None
) -> str:
    """Why the last weights were not judged; "" for a run in which all went well."""
    if config.mode == "decoupled":
        from gruppetto.cli.live import LiveView
        from gruppetto.launch.local import run_local

        with LiveView(title, config.rounds) as view:
            return run_local(
                config, directory, cache=cache, clock=MonotonicClock(), show=view.show, strike=strike, engine=engine
            )
    run_rival(config, directory, cache=cache)
    return ""


def check_data(config: RunConfig, cache: Path) -> None:
    """Raises :class:`gruppetto.errors.DataError` for a corpus that cannot be used, before anything is deleted."""
    from gruppetto.train.data import open_data

    open_data(config.train, cache)


def needed_by(config: RunConfig) -> list[Path]:
    """The files that the settings name."""
    place = config.syncer
    named = (place_of(config.train.data.corpus), place.token_file, place.tls_cert, place.tls_key, place.certs)
    return [at_home(name) for name in named if name]


def place_of(corpus: str) -> str | None:
    """Where on this machine a corpus lies, if its name says so.

    >>> place_of("archive:texts.zip#**/*.md"), place_of("package:linux:/srv"), place_of("package:linux")
    ('texts.zip', '/srv', None)
    """
    kind, _, rest = corpus.partition(":")
    found = {"text": rest, "archive": path_of(rest), "package": rest.partition(":")[2]}
    return found.get(kind) or None


def run_rival(config: RunConfig, directory: Path, *, cache: Path) -> None:
    """Run what decoupled training is measured against, by the same settings, in a fresh directory."""
    from gruppetto.train.baseline import Plan, run_baseline

    assert config.mode != "decoupled"
    outer = {"outer_rate": config.outer.lr, "outer_momentum": config.outer.momentum}
    plan = Plan(
        mode=config.mode,
        setting=config.train,
        num_learners=1 if config.mode == "single" else config.protocol.num_learners,
        rounds=config.rounds,
        out=str(directory),
        cache=str(cache),
        sync_period=config.protocol.sync_period,
        **{name: value for name, value in outer.items() if value is not None},
    )
    with _Progress(directory / "train.jsonl", config.rounds):
        run_baseline(plan)
    write_run(config, directory / "run.toml")


class _Progress:
    """Says on stderr every few seconds how far a rival is, by its training log."""

    def __init__(self, log: Path, rounds: int) -> None:
        self._log, self._rounds = log, rounds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        from gruppetto.report.curves import read_train_log

        while not self._ended.wait(PROGRESS_EVERY_S):
            records = read_train_log(self._log) if self._log.exists() else []
            if records:
                last = records[-1]
                print(
                    f"{last['t']:.0f} s: round {last['round']}/{self._rounds}, {last['kind']} loss {last['loss']:.3f}",
                    file=sys.stderr,
                )
