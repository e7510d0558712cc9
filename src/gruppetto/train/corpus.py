"""Where text comes from, and which part of it is never trained on.

A corpus is a sorted list of documents that are read when needed, so its size is not bounded by memory. It
divides into a train and a held-out part, about 19 : 1, by names and positions alone: every process on every
machine that sees the same files makes the same cut, and no byte is ever in both parts.

No document holds the byte 0, which is therefore free to mark where one ends (:mod:`gruppetto.train.tokens`).
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from gruppetto.errors import DataError
from gruppetto.home import at_home
from gruppetto.train.manifest import Manifest
from gruppetto.train.setting import SOURCES

__all__ = ["Corpus", "Document", "FileSpan", "Manifest", "divide", "open_corpus"]

HELD_OUT_PERCENT = 5
MAX_BLOCK_BYTES = 64 * 1024
MIN_BLOCK_BYTES = 64
STDLIB_WITHOUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
"""Folders left out: other people's packages, and the tests, which some systems install apart."""


class Document(Protocol):
    """One text with a name that is the same on every machine."""

    @property
    def name(self) -> str: ...

    def read(self) -> bytes:
        """UTF-8 without the byte 0; :class:`DataError` if it is something else."""
        ...


@dataclass(frozen=True, slots=True)
class FileSpan:
    """The bytes ``start`` to ``stop`` of a file, cut between characters."""

    name: str
    path: Path
    start: int
    stop: int

    def read(self) -> bytes:
        with _readable(self.path), self.path.open("rb") as file:
            file.seek(self.start)
            return _checked(file.read(self.stop - self.start), str(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents to train on and documents to be judged by."""

    train: tuple[Document, ...]
    held_out: tuple[Document, ...]
    manifest: Manifest


def open_corpus(source: str, cache: Path = Path(".cache/gruppetto")) -> Corpus:
    """The corpus called ``source``, of a kind in :data:`gruppetto.train.setting.SOURCES`, read once to be sure.

    Archives are unpacked into ``cache``, and packages are looked for in its folder ``packages``. Raises
    :class:`DataError` when there is nothing there, or when what is there is not text.
    """
    kind, _, rest = source.partition(":")
    if source == "python-stdlib":
        documents = _standard_library()
    elif kind == "text" and rest:
        documents = _files(at_home(rest))
    elif kind == "hf" and rest:
        from gruppetto.train.hub import hub_documents

        documents = hub_documents(rest)
    elif kind == "archive" and rest:
        from gruppetto.train.archive import path_of
        from gruppetto.train.unpacked import Wanted, open_archive

        path = path_of(rest)
        pattern, _, field = rest[len(path) + 1 :].partition("#")
        return open_archive(source, at_home(path), Wanted(pattern=pattern or "**", field=field), cache)
    elif kind == "package" and rest:
        from gruppetto.train.packages import open_package

        name, _, folder = rest.partition(":")
        return open_package(name, at_home(folder) if folder else cache / "packages", cache)
    else:
        raise DataError(f"{source!r} is unknown", where="corpus", fix=f"use {SOURCES}")
    return divide(source, documents)


def _standard_library() -> list[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    documents: list[Document] = []
    for path in _sorted(_sources(root)):
        if _is_text(path):
            documents.append(FileSpan(path.relative_to(root).as_posix(), path, 0, path.stat().st_size))
    if not documents:
        raise DataError("holds no sources of the standard library", where=str(root), fix="use text:PATH instead")
    return documents


def _sources(root: Path) -> Iterator[Path]:
    """Folders that are left out are not walked: other people's packages are ten times as many files."""
    for place, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - STDLIB_WITHOUT)
        paths = (Path(place) / name for name in files if name.endswith(".py"))
        yield from (path for path in paths if path.is_file())


def _files(root: Path) -> list[Document]:
    """The file, or every file below the folder whose path has no hidden part."""
    if not root.exists():
        raise DataError("does not exist", where=str(root), fix="name a text file or a folder of them")
    if root.is_file():
        paths = [root]
    else:
        paths = _sorted(path for path in root.rglob("*") if path.is_file() and not _hidden(path.relative_to(root)))
    documents: list[Document] = []
    for path in paths:
        with _readable(path):
            size = path.stat().st_size
        if size:
            name = path.relative_to(root).as_posix() if path != root else path.name
            documents.append(FileSpan(name, path, 0, size))
    if not documents:
        raise DataError("holds no text", where=str(root), fix="name a text file or a folder of them")
    return documents


def divide(source: str, documents: list[Document]) -> Corpus:
    """Cut by document where that gives a fair share, else by blocks within them."""
    chosen = [_draw(document.name) < HELD_OUT_PERCENT for document in documents]
    sizes = [_size(document) for document in documents]
    share = sum(size for size, held in zip(sizes, chosen, strict=True) if held) / sum(sizes)
    if not 0.01 <= share <= 0.2:
        documents = list(_blocks(documents, sum(sizes)))
        every = 100 // HELD_OUT_PERCENT
        chosen = [index % every == every // 2 for index in range(len(documents))]
    train = tuple(d for d, held in zip(documents, chosen, strict=True) if not held)
    held_out = tuple(d for d, held in zip(documents, chosen, strict=True) if held)
    if not held_out:
        raise DataError("is too small to hold a part back", where=source, fix="use at least a few kilobytes of text")
    digest = hashlib.sha256()
    train_bytes = _take_in(digest, b"train", train)
    held_out_bytes = _take_in(digest, b"held-out", held_out)
    manifest = Manifest(
        source=source,
        train_documents=len(train),
        train_bytes=train_bytes,
        held_out_documents=len(held_out),
        held_out_bytes=held_out_bytes,
        sha256=digest.hexdigest(),
    )
    return Corpus(train=train, held_out=held_out, manifest=manifest)


def _blocks(documents: list[Document], total_bytes: int) -> Iterator[Document]:
    """The same bytes in blocks, some forty of them or more, each whole in its characters."""
    size = max(MIN_BLOCK_BYTES, min(MAX_BLOCK_BYTES, total_bytes // 40))
    for document in documents:
        if not isinstance(document, FileSpan):
            yield document
            continue
        cuts = [document.start, *_cuts(document, size), document.stop]
        for index, (start, stop) in enumerate(pairwise(cuts)):
            if start < stop:
                yield FileSpan(f"{document.name}#{index}", document.path, start, stop)


def _cuts(span: FileSpan, size: int) -> Iterator[int]:
    """Every ``size`` bytes, moved on past the bytes that continue a character (10xxxxxx)."""
    with _readable(span.path), span.path.open("rb") as file:
        for cut in range(span.start + size, span.stop, size):
            file.seek(cut)
            continued = next((i for i, byte in enumerate(file.read(4)) if byte & 0xC0 != 0x80), 0)
            yield min(cut + continued, span.stop)


def _take_in(digest: hashlib._Hash, part: bytes, documents: Iterable[Document]) -> int:
    """Hash names, lengths and contents, so that no two corpora look alike; the sum of the lengths."""
    total = 0
    for document in documents:
        content = document.read()
        digest.update(b"%s\0%s\0%d\0" % (part, _name_bytes(document.name), len(content)))
        digest.update(content)
        total += len(content)
    return total


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=str(path), fix="check the file") from error


def _checked(content: bytes, where: str) -> bytes:
    fix = "leave it out, or convert it to UTF-8 text"
    if b"\0" in content:
        raise DataError("is not text: it holds the byte 0", where=where, fix=fix)
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"is not text in UTF-8 (byte {error.start})", where=where, fix=fix) from error
    return content


def _is_text(path: Path) -> bool:
    try:
        return bool(_checked(path.read_bytes(), str(path)))
    except (OSError, DataError):
        return False


def _size(document: Document) -> int:
    return document.stop - document.start if isinstance(document, FileSpan) else len(document.read())


def _draw(name: str) -> int:
    """0 to 99, fixed by the name."""
    return int.from_bytes(hashlib.sha256(_name_bytes(name)).digest()[:8]) % 100


def _name_bytes(name: str) -> bytes:
    """As the file system has it, even where that is no valid text."""
    return name.encode("utf-8", "surrogateescape")


def _hidden(inside: Path) -> bool:
    return any(part.startswith(".") for part in inside.parts)


def _sorted(paths: Iterable[Path]) -> list[Path]:
    """By their parts as text, which no locale or file system changes."""
    return sorted(paths, key=lambda path: path.as_posix())
