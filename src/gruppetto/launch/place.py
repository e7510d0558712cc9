"""The directory of a run: a fresh one, or one freed of the run that was in it, and held while a run goes on there."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gruppetto.errors import DataError, StateError
from gruppetto.files import open_file
from gruppetto.report.rundir import PLAN, PROCESSES, RUN, TRACE, TRAIN_LOG
from gruppetto.trace.log import Record, is_trace, read_trace

__all__ = ["LOCK", "SEEDS", "clear", "has_begun", "held_directory", "holds_run", "is_held", "run_directory"]

SEEDS = "seeds.json"
"""In a directory that holds several runs, one for each seed."""
LOCK = ".lock"
"""Held by whoever runs something in the directory; a process that dies lets go of it, however it dies."""
SYNCER_LOCK = "*/epochs/*"
"""A syncer that was started by hand holds its state directory by itself."""


@contextmanager
def run_directory(
    out: str | None,
    name: str,
    *,
    overwrite: bool,
    keep: Iterable[Path] = (),
    ready: Callable[[], object] = lambda: None,
) -> Iterator[Path]:
    """An empty directory, held until the end of the block: ``out``, or ``runs/NAME-N`` with the first free N.

    With ``overwrite`` a run that has ended there is deleted, after ``ready`` has found that the new one can start;
    never one that goes on, and never one that holds a path in ``keep``. Raises :class:`StateError` rather than write
    over anything else.
    """
    directory = _numbered(name) if out is None else _made(Path(out))
    with _held(directory / LOCK):
        if _content(directory):
            if not holds_run(directory):
                raise StateError("is not empty, and not a run", where=str(directory), fix="name another directory")
            if not overwrite:
                raise StateError(
                    "holds a run already", where=str(directory), fix="name another directory, or say --overwrite"
                )
            _refuse_to_lose(directory, keep)
            ready()
            for lock in sorted(directory.glob(SYNCER_LOCK)):
                with _held(lock):
                    pass
            clear(directory)
        yield directory


@contextmanager
def held_directory(directory: Path) -> Iterator[None]:
    """``directory`` as it is, held until the end of the block. Raises :class:`StateError` while a run goes on in it."""
    with _held(directory / LOCK):
        for lock in sorted(directory.glob(SYNCER_LOCK)):
            with _held(lock):
                pass
        yield


def is_held(directory: Path) -> bool:
    """Whether somebody runs something in ``directory`` at this moment."""
    try:
        with open_file(directory / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # no lock, or one that is not ours to look at
    return False


def holds_run(directory: Path) -> bool:
    """Whether a run was recorded in ``directory``. A lone RUN.toml is somebody's settings, not a run."""

    def has(*names: str) -> bool:
        return all((directory / name).is_file() for name in names)

    trace = directory / TRACE
    traced = has(TRACE) and trace.stat().st_size > 0 and is_trace(trace)
    return traced or has(SEEDS) or has(RUN, PROCESSES) or has(PLAN, TRAIN_LOG)


def has_begun(directory: Path) -> bool:
    """Whether the run in ``directory`` came to anything: a round was closed, or a rival trained."""
    log, trace = directory / TRAIN_LOG, directory / TRACE
    if log.is_file() and log.stat().st_size > 0:
        return True
    if not is_trace(trace):
        return False
    try:
        return any(isinstance(line, Record) and line.name == "RoundClosed" for line in read_trace(trace))
    except DataError:
        return True  # it cannot be read, so nobody knows


def clear(directory: Path) -> None:
    """Delete what is in ``directory``, but for its lock. It may be a link, or where we are."""
    try:
        for entry in _content(directory):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        raise StateError(
            f"cannot be emptied ({error.strerror or error})", where=str(directory), fix="name another directory"
        ) from error


def _content(directory: Path) -> list[Path]:
    return [entry for entry in sorted(directory.iterdir()) if entry.name != LOCK]


def _refuse_to_lose(directory: Path, keep: Iterable[Path]) -> None:
    place = directory.resolve()
    for path in keep:
        if path.resolve().is_relative_to(place):
            raise StateError(
                f"holds {path}, which is needed", where=str(directory), fix="move it, or name another directory"
            )


def _numbered(name: str) -> Path:
    """Made by us alone: of two that start at once, one takes the next number."""
    runs = _made(Path("runs"))
    for number in range(1, 1_000_000):
        directory = runs / f"{name}-{number}"
        with suppress(FileExistsError):
            directory.mkdir()
            return directory
    raise StateError("is full", where=str(runs), fix="give --out")


def _made(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"cannot be made ({error.strerror})", where=str(directory), fix="name another directory"
        ) from error
    return directory


@contextmanager
def _held(lock: Path) -> Iterator[BinaryIO]:
    try:
        file = lock.open("ab")
    except OSError as error:
        raise StateError(
            f"cannot be written ({error.strerror})", where=str(lock.parent), fix="name another directory"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(
                "a run goes on in it", where=str(lock.parent), fix="stop that one, or name another directory"
            ) from None
        yield file
