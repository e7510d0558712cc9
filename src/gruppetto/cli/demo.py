"""``gruppetto demo``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from gruppetto.cli.flags import overrides_of, print_json, read_flags
from gruppetto.cli.train import check_data, needed_by, ride_and_report, run_rival
from gruppetto.config import RunConfig, load_run
from gruppetto.home import at_home
from gruppetto.launch.place import run_directory
from gruppetto.launch.strike import Strike
from gruppetto.report.rundir import RIVALS, write_report

__all__ = ["main"]

WELCOME = """\
Four learners and a syncer train one small language model on this machine, on the source files of this Python.
dora is about half as fast as the others. Nobody waits for her, and her work counts all the same.
{strike}All share the cores of this machine: what four learners buy here is a lower loss in as many rounds, not time.
"""
STRIKE = """\
In mid-run {learner} is killed (kill -9), and started again. Watch the others.
"""
STRUCK = 1
"""Which learner of the run: one of the fast ones."""
STRUCK_AT = 0.4
"""The share of the rounds after which it is."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Four unequal learners train one small model on this machine, in a few minutes; then a report."""

    rounds: Annotated[str | None, tyro.conf.arg(metavar="T")] = None
    """The last round."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="S")] = None
    """Of the first weights and the order of the data."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting; may be given several times."""
    out: Annotated[str | None, tyro.conf.arg(metavar="RUNDIR")] = None
    """The run directory; runs/demo-N by default."""
    overwrite: bool = False
    """Delete the run that is in RUNDIR."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs."""
    alone: bool = False
    """Leave out the comparison with a single learner."""
    no_kill: bool = False
    """Let every learner live."""
    json: bool = False
    """The report as one JSON object on standard output."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "demo")
    seeds = {"train.seed": flags.seed, "model.seed": flags.seed}
    config = load_run(preset="demo", overrides=overrides_of(flags.set, {"run.rounds": flags.rounds, **seeds}))
    cache = at_home(flags.cache)
    keep = [cache, *needed_by(config)]
    with run_directory(
        flags.out, "demo", overwrite=flags.overwrite, keep=keep, ready=lambda: check_data(config, cache)
    ) as directory:
        strike = None if flags.no_kill else _strike(config)
        what = STRIKE.format(learner=strike.learner) if strike is not None else ""
        print(WELCOME.format(strike=what), file=sys.stderr)
        report = ride_and_report(config, directory, cache=cache, title="demo", strike=strike)
        if not flags.alone:
            print("For comparison: one learner alone, for as many rounds.", file=sys.stderr)
            alone = directory / RIVALS / "single"
            alone.mkdir(parents=True)
            run_rival(replace(config, mode="single"), alone, cache=cache)
            report = write_report(directory)
    if flags.json:
        print_json(report.figures)
    else:
        print(f"{report.text}\n{directory}")
    return 0


def _strike(config: RunConfig) -> Strike | None:
    """Who dies, and when; nobody in a run of one learner, or of a few rounds."""
    if len(config.learners) <= STRUCK or config.mode != "decoupled" or config.rounds < 10:
        return None
    return Strike(learner=config.learners[STRUCK].name, round=round(STRUCK_AT * config.rounds))
