"""A corpus out of an archive: its texts one behind the other in one flat file of the cache, and an index of them.

Both are there under the hash of the archive and of what was asked of it, whole or not at all. The index is written
last, and holds the cut and the manifest too: opened again, nothing but the archive's hash is computed.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from gruppetto.errors import DataError
from gruppetto.train.archive import CHUNK_BYTES, Member, members
from gruppetto.train.cache import publish
from gruppetto.train.corpus import Corpus, Document, FileSpan, divide
from gruppetto.train.globs import beginning, matcher
from gruppetto.train.manifest import Manifest

__all__ = ["Wanted", "hash_of", "open_archive"]

FORMAT = "2"
"""Part of the key; raise it when the same archive is to give other documents."""
MAX_DOCUMENTS = 2**22
"""Their names and places are held in memory."""
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which members: those whose whole path matches ``pattern`` (of :mod:`gruppetto.train.globs`).

    With ``field`` they are lines of JSON, and each line is a document: the text that has this name in it.
    """

    pattern: str = "**"
    field: str = ""


def open_archive(source: str, path: Path, wanted: Wanted, cache: Path) -> Corpus:
    """The texts among its members, sorted by name; of two with one name the last counts, as when it is unpacked.

    Members that are no text are left out and counted, empty ones and links left out. Raises :class:`DataError` for an
    archive that is not there, cannot be read, or holds no text that was asked for.
    """
    digest = hash_of(path)
    asked = "\0".join((FORMAT, digest, wanted.pattern, wanted.field))
    key = hashlib.sha256(asked.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    flat, index = cache / f"archive-{key}.text", cache / f"archive-{key}.json"
    if not (flat.exists() and index.exists()):
        unpacking = _Unpacking(path, wanted, digest)
        publish(flat, unpacking.write)
        _refuse_other_size(flat, unpacking.flat_bytes)  # one that was there already
        try:
            corpus = divide(source, unpacking.documents(flat))
        except DataError:
            flat.unlink(missing_ok=True)  # without an index nobody reads it
            raise
        whole = replace(corpus, manifest=replace(corpus.manifest, skipped=unpacking.skipped))
        publish(index, lambda file: file.write(_index(whole, unpacking.flat_bytes)))
    corpus = _read(index, flat)
    named = replace(corpus.manifest, source=source, file=path.name, file_sha256=digest)
    return replace(corpus, manifest=named)


def hash_of(path: Path) -> str:
    """SHA-256 of a plain file, in hexadecimal. Raises :class:`DataError`."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise DataError("does not exist", where=str(path), fix="bring it there, or name another archive") from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(path), fix="name an archive") from error
    except ValueError as error:  # a byte 0 in its name
        raise DataError(f"cannot be read ({error})", where=str(path), fix="name an archive") from error
    # Of a pipe or a device nobody knows the end.
    raise DataError("is no plain file", where=str(path), fix="name an archive")


class _Unpacking:
    """One pass through an archive."""

    def __init__(self, path: Path, wanted: Wanted, digest: str) -> None:
        self._path, self._field, self._digest = path, wanted.field, digest
        self._matches, self._begins = matcher(wanted.pattern).fullmatch, beginning(wanted.pattern)
        self._spans: dict[str, tuple[tuple[str, int, int], ...]] = {}
        """Of each member the documents in it."""
        self._skipped: set[str] = set()
        self._at = self._count = 0

    @property
    def skipped(self) -> int:
        return len(self._skipped)

    @property
    def flat_bytes(self) -> int:
        """Of all texts together."""
        return self._at

    def documents(self, flat: Path) -> list[Document]:
        """Sorted by name."""
        found = [span for spans in self._spans.values() for span in spans]
        if not found:
            raise DataError("holds no text that was asked for", where=str(self._path), fix="use another #PATTERN")
        return [FileSpan(name, flat, start, stop) for name, start, stop in sorted(found)]

    def write(self, file: BinaryIO) -> None:
        take = self._take_lines if self._field else self._take_text
        for member in members(self._path, self._enters):
            if not self._matches(member.name):
                continue
            before = self._at
            spans = take(member, file)
            self._spans.pop(member.name, None)  # of two the last one counts
            self._skipped.discard(member.name)
            if spans is None:
                self._at = before
                file.seek(before)
                file.truncate()
                self._skipped.add(member.name)
            elif spans:
                self._spans[member.name] = spans
                self._count += len(spans)
                self._bound()
        if hash_of(self._path) != self._digest:  # it would be found under the hash of another file for ever
            raise DataError("has changed while it was read", where=str(self._path), fix="wait until it is whole")

    def _enters(self, folder: str) -> bool:
        """Whether there can be something below a folder that is asked for."""
        return self._begins.startswith(folder) or folder.startswith(self._begins)

    def _bound(self) -> None:
        if self._count > MAX_DOCUMENTS:
            fix = "choose some of them with #PATTERN"
            raise DataError(f"holds more than {MAX_DOCUMENTS:,} documents", where=str(self._path), fix=fix)

    def _take_text(self, member: Member, file: BinaryIO) -> tuple[tuple[str, int, int], ...] | None:
        """One document; None if it is no UTF-8 or holds the byte 0."""
        start, decoder = self._at, codecs.getincrementaldecoder("utf-8")()
        try:
            while chunk := member.body.read(CHUNK_BYTES):
                decoder.decode(chunk)
                if b"\0" in chunk:
                    return None
                file.write(chunk)
                self._at += len(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return None
        return ((member.name, start, self._at),) if self._at > start else ()

    def _take_lines(self, member: Member, file: BinaryIO) -> tuple[tuple[str, int, int], ...] | None:
        """A document for each line that has a text."""
        spans = []
        for number, text in enumerate(self._texts(member), start=1):
            if text:
                file.write(text)
                spans.append((f"{member.name}:{number:08d}", self._at, self._at + len(text)))
                self._at += len(text)
                if len(spans) + self._count > MAX_DOCUMENTS:
                    self._count += len(spans)
                    self._bound()
        return tuple(spans)

    def _texts(self, member: Member) -> Iterator[bytes]:
        lines = io.BufferedReader(member.body, CHUNK_BYTES)
        number = 0
        while line := lines.readline(MAX_LINE_BYTES):
            number += 1
            if not line.strip():
                yield b""
                continue
            try:
                text = json.loads(line)[self._field]
                if not isinstance(text, str):
                    raise TypeError
            except (ValueError, LookupError, TypeError, RecursionError):
                if len(line) == MAX_LINE_BYTES:
                    raise DataError(
                        f"line {number} of {member.name} is longer than {MAX_LINE_BYTES >> 20} MiB",
                        where=str(self._path),
                        fix="name members of JSON lines only, by #PATTERN#FIELD",
                    ) from None
                raise DataError(
                    f"line {number} of {member.name} has no text called {self._field!r}",
                    where=str(self._path),
                    fix="name a field that every line has, and members of JSON lines only, by #PATTERN#FIELD",
                ) from None
            # The byte 0 marks the end of a document, so it cannot be inside one.
            yield text.replace("\0", "").encode("utf-8", "replace")


def _index(corpus: Corpus, flat_bytes: int) -> bytes:
    def listed(part: tuple[Document, ...]) -> list[tuple[str, int, int]]:
        return [(span.name, span.start, span.stop) for span in part if isinstance(span, FileSpan)]

    told = {"flat_bytes": flat_bytes, "manifest": asdict(corpus.manifest)}
    return json.dumps({**told, "train": listed(corpus.train), "held_out": listed(corpus.held_out)}).encode()


def _read(index: Path, flat: Path) -> Corpus:
    fix = "delete it: it is made again"
    try:
        told = json.loads(index.read_bytes())
        whole_bytes = told["flat_bytes"]
        train, held_out = (_spans(told[part], flat) for part in ("train", "held_out"))
        corpus = Corpus(train=train, held_out=held_out, manifest=Manifest(**told["manifest"]))
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(index), fix=fix) from error
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError("is no index of an archive", where=str(index), fix=fix) from error
    _refuse_other_size(flat, whole_bytes)
    return corpus


def _refuse_other_size(flat: Path, whole_bytes: int) -> None:
    fix = "delete it: it is made again"
    try:
        size_bytes = flat.stat().st_size
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(flat), fix=fix) from error
    if size_bytes != whole_bytes:
        raise DataError(f"is not whole ({size_bytes} bytes)", where=str(flat), fix=fix)


def _spans(listed: Any, flat: Path) -> tuple[Document, ...]:
    return tuple(FileSpan(str(name), flat, int(start), int(stop)) for name, start, stop in listed)
