"""``gruppetto launch RUN.toml --on ENGINE``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import at_most_one, overrides_of, positional, print_json, read_flags
from gruppetto.cli.train import check_data, needed_by, ride_and_report
from gruppetto.config import RunConfig, load_run
from gruppetto.errors import SettingError, UserError
from gruppetto.home import at_home
from gruppetto.launch.engine import Engine
from gruppetto.launch.place import run_directory
from gruppetto.launch.slurm_engine import SlurmEngine
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run a syncer and learners where an engine has room for them, from beginning to end, and watch over them."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, positional("[RUN.toml]")] = ()
    """The run's settings; [[group]] says how many learners of which kind, and what they need."""
    on: Annotated[str, tyro.conf.arg(metavar="ENGINE")] = "local"
    """local (this machine, without an engine), ray or slurm."""
    address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Of the Ray cluster: auto, HOST:PORT. Without it a Ray is started on this machine for the run."""
    standby: bool = False
    """Keep a second syncer in waiting, which takes over when the first one dies."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting; may be given several times."""
    out: Annotated[str | None, tyro.conf.arg(metavar="RUNDIR")] = None
    """The run directory, on storage that the syncer's node sees too; runs/ENGINE-N by default."""
    overwrite: bool = False
    """Delete the run that is in RUNDIR."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs, here and on the nodes."""
    json: bool = False
    """The report as one JSON object on standard output."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "launch")
    if flags.on not in _ENGINES:
        raise SettingError(f"is {flags.on!r:.80}", where="--on", fix=f"use {', '.join(_ENGINES)}")
    if flags.address is not None and flags.on != "ray":
        raise SettingError("is for Ray", where="--address", fix="add --on ray, or leave it out")
    file = at_most_one(flags.run, "RUN.toml", "launch")
    overrides = overrides_of(flags.set, {"launch.standby": "true" if flags.standby else None})
    config = load_run(Path(file) if file else None, overrides=overrides)
    if config.mode != "decoupled":
        raise SettingError(f"is {config.mode}", where="run.mode", fix="use decoupled, or gruppetto train for a rival")
    for group in config.groups:  # what is wrong there would be said by learners, one after the other
        load_run(Path(file) if file else None, overrides={**overrides, **overrides_of(group.set, {})})
    cache = at_home(flags.cache)
    keep = [*([Path(file)] if file else []), cache, *needed_by(config)]
    with (
        run_directory(
            flags.out, flags.on, overwrite=flags.overwrite, keep=keep, ready=lambda: check_data(config, cache)
        ) as directory,
        redirect_stdout(sys.stderr),  # an engine may have a lot to say, and the last word there is the report
    ):
        engine = _ENGINES[flags.on](config, directory.resolve(), flags.address)
        report = ride_and_report(config, directory.resolve(), cache=cache.resolve(), engine=engine)
    if flags.json:
        print_json(report.figures)
    else:
        print(f"{report.text}\n{directory}")
    return 0


def _no_engine(config: RunConfig, directory: Path, address: str | None) -> Engine | None:
    return None


def _ray(config: RunConfig, directory: Path, address: str | None) -> Engine | None:
    try:
        from gruppetto.launch.ray_engine import RayEngine
    except ImportError as missing:
        raise UserError(
            f"Ray cannot be imported ({missing})", where="--on ray", fix="pip install 'gruppetto[ray]'"
        ) from missing
    return RayEngine(config, directory, address=address, clock=MonotonicClock())


def _slurm(config: RunConfig, directory: Path, address: str | None) -> Engine | None:
    return SlurmEngine(config, directory, clock=MonotonicClock())


_ENGINES: dict[str, Callable[[RunConfig, Path, str | None], Engine | None]] = {
    "local": _no_engine,
    "ray": _ray,
    "slurm": _slurm,
}
