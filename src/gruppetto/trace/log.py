"""Writing a trace while a run goes on, and reading one back.

>>> import tempfile
>>> from pathlib import Path
>>> from gruppetto.protocol.events import Persisted
>>> from gruppetto.protocol.units import Round
>>> path = Path(tempfile.mkdtemp()) / "trace.jsonl"
>>> with TraceWriter(path, {"run_id": "tour"}) as trace:
...     trace.event(1.5, "syncer", Persisted(round=Round(1)))
...     trace.note(2.0, "judge", "evaluation", loss=1.25)
>>> for record in read_trace(path):
...     print(record)
Header(line=1, data={'run_id': 'tour'})
Record(line=2, t=1.5, who='syncer', kind='in', name='Persisted', data={'round': 1})
Record(line=3, t=2.0, who='judge', kind='note', name='evaluation', data={'loss': 1.25})
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

import msgspec

from gruppetto.errors import DataError, StateError
from gruppetto.files import open_file
from gruppetto.protocol.actions import LearnerAction, SyncerAction
from gruppetto.protocol.events import LearnerEvent, SyncerEvent
from gruppetto.trace.schema import TRACE_VERSION, data_of, encode_line

__all__ = ["Header", "Kind", "Record", "TraceWriter", "is_trace", "read_trace"]

_log = logging.getLogger("gruppetto.trace")

FLUSH_EVERY_S = 1.0
"""Trace time that may pass before a record is on its way to the disk."""
MAX_LINE_BYTES = 64 * 2**20
"""A longer line is no record of ours; reading it would only fill the memory."""
HEAD = b'{"trace":'
"""How every header begins, and so every trace."""

Kind = Literal["in", "out", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A life of the writer begins. ``data`` is what the writer said about it."""

    line: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event, action or note. ``line`` counts from 1; ``t`` is in seconds since the last header."""

    line: int
    t: float
    who: str
    kind: Kind
    name: str
    data: dict[str, Any]


class TraceWriter:
    """Appends records to ``path``; with None it takes everything and keeps nothing.

    The header line comes first. A trace that exists already is continued: a half-written last line is cut off, and
    the header says that a new life begins. Records may come from one thread only. Raises :class:`StateError` when the
    file cannot be opened, or holds anything else than a trace: that stays as it is. When it cannot be written later
    on, recording ends, is logged once and noted in ``broken``: a run does not die of its diary, and a diary with a gap
    would be worse than one that stops.
    """

    def __init__(self, path: Path | None, header: Mapping[str, object], *, over: bool = False) -> None:
        """``over``: whoever wrote the trace before may live, and hang. What it may still write goes nowhere."""
        self.path = path
        self._file: BinaryIO | None = None
        self.broken = ""
        """Why recording has ended before its time; empty while it has not."""
        self._flushed_at = 0.0
        self.tap: Callable[[bytes], None] | None = None
        """Called with every line too, also while nothing is kept."""
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                _refuse_stranger(path)
                if over:
                    _take_away(path)
                _cut_torn_line(path)
                self._file = path.open("ab", buffering=1 << 16)
            except OSError as error:
                raise StateError(
                    f"the trace cannot be written ({error.strerror or error})", where=str(path), fix="name another file"
                ) from error
        self.header(header)

    def header(self, header: Mapping[str, object]) -> None:
        """Say what the records that follow belong to, as soon as it is known. Replay wants
        :func:`gruppetto.trace.schema.core_header` before the first event of a core."""
        self._append({"trace": TRACE_VERSION, **header})
        self._flushed_at = 0.0
        self.flush()

    def event(self, t: float, who: str, event: SyncerEvent | LearnerEvent) -> None:
        """An event that is fed to the core of ``who`` at time ``t``. Written before its actions."""
        self._write(t, {"t": t, "who": who, "in": type(event).__name__, "data": data_of(event)})

    def actions(self, t: float, who: str, actions: Iterable[SyncerAction | LearnerAction]) -> None:
        """What the core of ``who`` decided, in order."""
        for action in actions:
            self._write(t, {"t": t, "who": who, "out": type(action).__name__, "data": data_of(action)})

    def note(self, t: float, who: str, kind: str, **fields: object) -> None:
        """Anything else worth keeping; ``fields`` are what JSON can say."""
        self._write(t, {"t": t, "who": who, "note": kind, "data": fields})

    def abandon(self, why: str) -> None:
        """Record nothing more, and what is not written yet neither: by now the file may be another process's."""
        self.tap = None
        if self._file is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file.fileno(), inheritable=False)
            os.close(nowhere)
            self._file.close()
            self._file, self.broken = None, why

    def flush(self) -> None:
        """Hand everything to the operating system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._break(error)

    def close(self) -> None:
        """Flush and end. Closing twice does nothing."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, t: float, record: Mapping[str, object]) -> None:
        self._append(record)
        if t - self._flushed_at >= FLUSH_EVERY_S:
            self._flushed_at = t
            self.flush()

    def _append(self, record: Mapping[str, object]) -> None:
        if self._file is None and self.tap is None:
            return
        line = encode_line(record)
        if self.tap is not None:
            self.tap(line)
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:
                self._break(error)

    def _break(self, error: OSError) -> None:
        self.broken = error.strerror or str(error)
        _log.warning("%s: recording ends here (%s); the run goes on", self.path, self.broken)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


def read_trace(path: Path) -> Iterator[Header | Record]:
    """All lines of a trace, in order.

    A torn last line, as kill −9 leaves it, is passed over. Raises :class:`DataError` with the line number for anything
    else that is not a trace.
    """
    try:
        file = open_file(path)
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror})", where=str(path), fix="name a trace.jsonl or a run directory"
        ) from error
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            where = f"{path}:{number}"
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE_BYTES:
                    raise DataError(f"the line is longer than {MAX_LINE_BYTES} bytes", where=where)
                return
            record = _parse(line, number, where)
            if number == 1 and not isinstance(record, Header):
                raise DataError("the first line is not a header", where=where, fix="name a trace.jsonl")
            yield record
        if number == 0:
            raise DataError("is empty", where=str(path), fix="name the trace of a run that has begun")


class _Line(msgspec.Struct):
    """The one shape of all lines but headers."""

    t: float
    who: str
    data: dict[str, Any]
    come: str | None = msgspec.field(default=None, name="in")
    out: str | None = None
    note: str | None = None


_DECODER = msgspec.json.Decoder(_Line)


def _parse(line: bytes, number: int, where: str) -> Header | Record:
    if line.startswith(HEAD):
        return _parse_header(line, number, where)
    try:
        parsed = _DECODER.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"is not a trace record ({error})", where=where) from error
    kinds: tuple[tuple[Kind, str | None], ...] = (("in", parsed.come), ("out", parsed.out), ("note", parsed.note))
    named = [(kind, name) for kind, name in kinds if name is not None]
    if len(named) != 1:
        raise DataError("a record has exactly one of in, out and note", where=where)
    ((kind, name),) = named
    return Record(line=number, t=parsed.t, who=parsed.who, kind=kind, name=name, data=parsed.data)


def _parse_header(line: bytes, number: int, where: str) -> Header:
    try:
        data = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"is not a trace header ({error})", where=where) from error
    version = data.pop("trace", None)
    if version != TRACE_VERSION:
        raise DataError(
            f"is a trace of version {version}, and version {TRACE_VERSION} is read here",
            where=where,
            fix="use the gruppetto that wrote it",
        )
    return Header(line=number, data=data)


def is_trace(path: Path) -> bool:
    """Whether a trace lies at ``path``, by how it begins. One that was torn within its first words counts.

    >>> is_trace(Path("no-such-file"))
    False
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begins = file.read(len(HEAD))
    return begins != b"" and HEAD.startswith(begins)


def _take_away(path: Path) -> None:
    """The file gets the place of its own copy, so that whoever has it open writes to one that nobody reads."""
    if path.exists():
        copy = path.with_name(f".{path.name}.new")
        shutil.copyfile(path, copy)
        copy.replace(path)


def _refuse_stranger(path: Path) -> None:
    if path.is_file() and path.stat().st_size and not is_trace(path):
        raise StateError("is not a trace, and is left as it is", where=str(path), fix="name another file")


def _cut_torn_line(path: Path) -> None:
    """What was being written at the moment of a crash would spoil the line that follows it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, 2)
        while end > 0:
            start = max(0, end - (1 << 16))
            file.seek(start)
            last = file.read(end - start).rfind(b"\n")
            if last >= 0:
                file.truncate(start + last + 1)
                return
            end = start
        file.truncate(0)
