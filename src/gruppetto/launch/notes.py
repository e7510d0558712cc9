"""What others than the syncer note about a run: beside the trace while it goes on, in it when all have ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from gruppetto.errors import GruppettoError
from gruppetto.report.rundir import DEATHS, EVALUATION, TRACE
from gruppetto.trace.log import Record, TraceWriter, read_trace

__all__ = ["Losses", "keep_notes"]

_log = logging.getLogger("gruppetto.launch")


class Losses:
    """The judge's evaluations, read again when there are more."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVALUATION
        self._read_bytes = 0
        self.known: list[tuple[int, float]] = []
        """(round, held-out loss)."""

    def look(self) -> None:
        """Raises OSError and :class:`GruppettoError`."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size > self._read_bytes:
            self._read_bytes = size
            # By round: a judge that was called anew begins with round 0 again.
            self.known = sorted({r.data["round"]: r.data["loss"] for r in _notes(self._path)}.items())


def keep_notes(directory: Path) -> None:
    """Put evaluations and deaths into the trace of the run that has ended. What cannot be stays where it is."""
    for name, kept in (("evaluations", EVALUATION), ("deaths", DEATHS)):
        try:
            _merge(directory / kept, directory / TRACE)
        except (GruppettoError, OSError) as error:
            # The report finds them where they are; what ended the run is what has to be heard.
            _log.warning("the %s stay in %s (%s)", name, directory / kept, error)


def _merge(path: Path, into: Path) -> None:
    """The trace alone tells the whole run, once nobody else writes to it."""
    if not path.exists() or not into.exists():
        return
    with TraceWriter(into, {"notes": path.stem}) as trace:
        for record in list(_notes(path)):
            trace.note(record.t, record.who, record.name, **record.data)
    if not trace.broken:
        path.unlink()


def _notes(path: Path) -> Iterator[Record]:
    return (line for line in read_trace(path) if isinstance(line, Record) and line.kind == "note")
