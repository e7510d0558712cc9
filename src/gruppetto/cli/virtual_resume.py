"""``gruppetto resume`` of a virtual run that was interrupted: the same result, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gruppetto.cli.virtual import PLAN, STATE, read_virtual_plan, ride_virtually
from gruppetto.config.load import read_whole_toml
from gruppetto.launch.place import LOCK, held_directory, run_directory
from gruppetto.report.rundir import TRACE, Report
from gruppetto.trace.log import is_trace, read_trace

__all__ = ["has_virtually_ended", "is_virtual", "resume_virtually"]


def is_virtual(directory: Path) -> bool:
    """Whether a virtual run was begun there."""
    return (directory / STATE).is_dir() or _is_said_by(directory / TRACE)


def has_virtually_ended(directory: Path) -> bool:
    """Its report is written, and nothing is left to be resumed."""
    return not (directory / STATE).is_dir()


def resume_virtually(directory: Path, *, out: str | None, cache: Path, workers: int) -> Report:
    """Go on with an interrupted one, there or in a new directory. Raises :class:`SettingError` if its plan was never
    written whole."""
    read_whole_toml(directory / PLAN)
    with _place(directory, out) as place:
        asked = read_virtual_plan(place / PLAN)
        return ride_virtually(asked, place, cache=cache, workers=workers, compare=[], resume=True)


@contextmanager
def _place(directory: Path, out: str | None) -> Iterator[Path]:
    if out is None:
        with held_directory(directory):
            yield directory
    else:
        with run_directory(out, "resumed", overwrite=False) as place:
            shutil.copytree(directory, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK))
            yield place


def _is_said_by(trace: Path) -> bool:
    """A trace that was torn within its first line says nothing yet."""
    first = next(iter(read_trace(trace)), None) if is_trace(trace) else None
    return first is not None and bool(first.data.get("virtual"))
