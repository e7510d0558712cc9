"""``gruppetto report RUNDIR``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import exactly_one, positional, print_json, read_flags
from gruppetto.report import write_report

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Write report.json, report.html and figures/ into a run directory, from what it recorded."""

    directory: Annotated[tuple[str, ...], tyro.conf.Positional, positional("RUNDIR")] = ()
    """The run directory."""
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUNDIR")] = ()
    """Other runs whose loss is drawn beside this one's; may be given several times."""
    json: bool = False
    """The report as one JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "report")
    directory = Path(exactly_one(flags.directory, "RUNDIR", "report"))
    report = write_report(directory, [Path(other) for other in flags.compare])
    if flags.json:
        print_json(report.figures)
    else:
        print(report.text)
    return 0
