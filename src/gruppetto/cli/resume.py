"""``gruppetto resume RUNDIR|CHECKPOINT``"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import exactly_one, positional, print_json, read_flags
from gruppetto.cli.virtual_resume import has_virtually_ended, is_virtual, resume_virtually
from gruppetto.cli.workers import workers_of
from gruppetto.errors import RunFailed, SettingError
from gruppetto.home import at_home
from gruppetto.launch.place import held_directory, run_directory
from gruppetto.launch.resuming import Resumption, find, make_ready
from gruppetto.report.rundir import Report, write_report
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.train.corpus import open_corpus
from gruppetto.train.manifest import check_same

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Go on with a whole local run: from its newest checkpoint, or a named one, as if it had not been interrupted.

    A run in virtual time goes on from what it saved last, to the same bits.

    Without a checkpoint it goes on from the syncer's durable state, and the learners begin with its weights.
    """

    source: Annotated[tuple[str, ...], tyro.conf.Positional, positional("RUNDIR|CHECKPOINT")] = ()
    """A run directory, or a checkpoint in one."""
    out: Annotated[str | None, tyro.conf.arg(metavar="NEWDIR")] = None
    """Go on in a new directory, and leave the old run as it is."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs."""
    workers: Annotated[str, tyro.conf.arg(metavar="N")] = "1"
    """Processes that train a virtual run; what comes out does not depend on them."""
    json: bool = False
    """The report as one JSON object on standard output."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "resume")
    source = Path(exactly_one(flags.source, "RUNDIR or CHECKPOINT", "resume"))
    workers = workers_of(flags.workers)
    if is_virtual(source):
        return _virtually(source, flags, workers)
    if workers > 1:
        raise SettingError("trains a virtual run, and this is none", where="--workers", fix="leave it out")
    with _place(source, flags.out) as (found, directory):
        if found.finished:
            if flags.json:
                print_json({"finished": True, "rounds": found.round})
            else:
                print(f"{found.run}: the run is finished, at round {found.round}: nothing is left to be resumed")
            return 0
        cache = at_home(flags.cache)
        check_same(open_corpus(found.config.train.data.corpus, cache).manifest, found.run)  # before anything is moved
        print(_what(found), file=sys.stderr, flush=True)
        make_ready(found, directory)
        report = _ride(found, directory, cache=cache)
    if flags.json:
        print_json(report.figures)
    else:
        print(f"{report.text}\n{directory}")
    return 0


def _virtually(source: Path, flags: Flags, workers: int) -> int:
    if has_virtually_ended(source):
        if flags.json:
            print_json({"finished": True})
        else:
            print(f"{source}: the run is finished: nothing is left to be resumed")
        return 0
    report = resume_virtually(source, out=flags.out, cache=at_home(flags.cache), workers=workers)
    if flags.json:
        print_json(report.figures)
    else:
        print(f"{report.text}\n{flags.out or source}")
    return 0


@contextmanager
def _place(source: Path, out: str | None) -> Iterator[tuple[Resumption, Path]]:
    """What is resumed, and where it goes on; held to the end of the block."""
    found = find(source)
    if found.finished:
        yield found, found.run
    elif out is not None:
        with run_directory(out, "resumed", overwrite=False) as directory:
            yield found, directory
    else:
        with held_directory(found.run):
            yield found, found.run


def _what(found: Resumption) -> str:
    if found.manifest is None:
        return f"no checkpoint: going on from round {found.round}; the learners begin with the syncer's weights"
    given_up = ""
    if found.newest_round > found.round:
        given_up = f"; rounds {found.round + 1} to {found.newest_round} are made anew"
    left_out = [name for name, _ in found.manifest.left_out]
    without = f", without {', '.join(left_out)}" if left_out else ""
    return f"going on from {found.checkpoint}, round {found.round}{without}{given_up}"


def _ride(found: Resumption, directory: Path, *, cache: Path) -> Report:
    from gruppetto.cli.live import LiveView
    from gruppetto.launch.local import run_local

    with LiveView(str(directory), found.config.rounds) as view:
        unjudged = run_local(
            found.config, directory, cache=cache, clock=MonotonicClock(), show=view.show, parts=found.parts
        )
    report = write_report(directory, [])
    if unjudged:
        raise RunFailed(unjudged)
    return report
