"""``gruppetto replay TAPE``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import exactly_one, positional, print_json, read_flags
from gruppetto.errors import DataError
from gruppetto.report.rundir import TRACE, TRAIN_LOG
from gruppetto.trace.replay import replay

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Put a recorded run through a fresh core, and compare all decisions, bit for bit. Exit 1 when they differ."""

    tape: Annotated[tuple[str, ...], tyro.conf.Positional, positional("TAPE")] = ()
    """A trace.jsonl, or a run directory that holds one."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "replay")
    path = Path(exactly_one(flags.tape, "TAPE", "replay"))
    if path.name == TRAIN_LOG or ((path / TRAIN_LOG).exists() and not (path / TRACE).exists()):
        fix = "name a decoupled run, or see gruppetto report"
        raise DataError("is of a rival, which has no protocol to replay", where=str(path), fix=fix)
    result = replay(path / TRACE if path.is_dir() else path)
    difference = result.first_difference
    if flags.json:
        print_json(
            {
                "events": result.events,
                "decisions": result.decisions,
                "lives": result.lives,
                "identical": result.identical,
                "first_difference": None if difference is None else str(difference),
            }
        )
    elif difference is None:
        print(f"{result.events:,} events led to the same {result.decisions:,} decisions, bit for bit")
    else:
        print(f"the decisions differ: {difference}")
    return 0 if result.identical else 1
