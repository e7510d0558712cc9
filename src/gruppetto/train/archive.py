"""The members of an archive, one after another, as streams.

Nothing is ever written under a name that stands in an archive, and an archive within is read in place: a Debian package
holds a tar, and that of the kernel's source holds another one. What is unpacked is bounded by the size of the file.
"""

from __future__ import annotations

import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from gruppetto.errors import DataError
from gruppetto.train.packing import BEGINNINGS, PACKINGS, Source

__all__ = ["CHUNK_BYTES", "ENDINGS", "Member", "is_archive", "members", "path_of"]

CHUNK_BYTES = 1 << 20
MOST_TIMES = 100
"""What is unpacked may be so many times as large as the file: text shrinks to a fifth or a tenth."""
LEAST_BOUND_BYTES = 256 << 20
"""Small archives may hold so much in any case."""
MAX_DEPTH = 4
"""Archives in archives in archives."""
ANOTHER = "get it again, or unpack it yourself and name the folder with text:PATH"

DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    struct.error,
)
"""All that the readers of the standard library say of bytes that they cannot make out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """``name``: its path, behind that of the archive in which it lies.

    ``body`` is good until the next is asked for; damage in it is a :class:`DataError`.
    """

    name: str
    body: io.RawIOBase


ZIPS = (".zip", ".whl")
DEB = ".deb"
DEB_BEGINS = b"!<arch>\n"
ENDINGS = (*PACKINGS, *ZIPS, DEB)


def is_archive(name: str) -> bool:
    """Whether :func:`members` can tell from its name what it is.

    >>> is_archive("linux-6.12.tar.xz"), is_archive("book.txt")
    (True, False)
    """
    return name.endswith(ENDINGS)


def path_of(asked: str) -> str:
    """The path in ``PATH[#PATTERN[#FIELD]]``: it ends where an archive's name does, and may hold a ``#`` before that.

    >>> path_of("books#2/a.zip#**/*.md"), path_of("a.tar"), path_of("book#1")
    ('books#2/a.zip', 'a.tar', 'book')
    """
    ends = (place for place, letter in enumerate(f"{asked}#") if letter == "#")
    return next((asked[:end] for end in ends if is_archive(asked[:end])), asked.partition("#")[0])


def members(path: Path, enters: Callable[[str], bool] = lambda folder: True) -> Iterator[Member]:
    """Every plain file in it, in the archive's order, those of a tar or a Debian package within it too.

    ``enters(folder)``: whether to look into one that lies within; else it is a member like others, as is whatever has
    the name of an archive and does not begin like one.

    A zip within another archive is a member like others: it cannot be read from the beginning to the end. Links are
    passed over, and a file with holes is one byte 0. Of a zip each name comes once, the last one; of a tar as often as
    it is there, and what follows its end is another tar. Raises :class:`DataError` for what is no archive, or damaged,
    or holds far more than it could of text.
    """
    if not is_archive(path.name):
        raise DataError("is no archive by its name", where=str(path), fix=f"name one that ends in {', '.join(ENDINGS)}")
    archive = _Archive(path, enters)
    with archive.damage_told():
        file = path.open("rb")
    with file:
        if path.name.endswith(ZIPS):
            yield from archive.of_zip(file)
        else:
            yield from archive.of_stream(path.name, _Checked(file, archive, counts=False), "", 0)


class _Archive:
    """The file, and how much has been unpacked of it."""

    def __init__(self, path: Path, enters: Callable[[str], bool]) -> None:
        self.path, self._enters = path, enters
        with self.damage_told():
            self._bound_bytes = max(LEAST_BOUND_BYTES, MOST_TIMES * path.stat().st_size)
        self._unpacked_bytes = 0

    @contextmanager
    def damage_told(self, inside: str = "") -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except DAMAGE as error:
            why = " ".join(str(error).split())[:200] or type(error).__name__
            place = f" at {inside}" if inside else ""
            raise DataError(f"cannot be unpacked{place} ({why})", where=str(self.path), fix=ANOTHER) from error

    def count(self, unpacked_bytes: int) -> None:
        self._unpacked_bytes += unpacked_bytes
        if self._unpacked_bytes > self._bound_bytes:
            raise DataError(
                f"holds more than {self._bound_bytes / 1e9:.3g} GB, {MOST_TIMES} times its own size",
                where=str(self.path),
                fix="if that is meant, unpack it yourself and name the folder with text:PATH",
            )

    def of_zip(self, file: IO[bytes]) -> Iterator[Member]:
        with self.damage_told():
            opened = zipfile.ZipFile(file)
            latest = {_clean(info.filename): info for info in opened.infolist() if not _no_file(info)}
        for name, info in latest.items():
            with self.damage_told(name):
                body = opened.open(info)
            with body:
                yield from self._one(name, _Checked(body, self, inside=name), 1)

    def of_stream(self, name: str, source: _Checked, prefix: str, depth: int) -> Iterator[Member]:
        """Of a tar or a Debian package that is called ``name``."""
        if name.endswith(DEB):
            yield from self._of_deb(source, prefix, depth)
            return
        ending = next(ending for ending in PACKINGS if name.endswith(ending))
        with self.damage_told(prefix):
            opened = PACKINGS[ending](source)
        plain = _Checked(opened, self, inside=prefix) if opened is not source else source
        with self.damage_told(prefix):
            tar = _Tars.open(fileobj=plain, mode="r|", bufsize=CHUNK_BYTES, ignore_zeros=True)
        at = prefix
        while True:
            with self.damage_told(at):
                info = tar.next()
                tar.members.clear()  # type: ignore[attr-defined]  # it would remember every one
                if info is None:
                    break
                body = tar.extractfile(info) if info.isreg() and not info.issparse() else None
            member = prefix + _clean(info.name)
            at = f"{member} or behind it"  # a chunk is read ahead
            if plain is not source:
                plain.inside = at
            if info.issparse():  # its holes are bytes 0, of which any number costs an archive nothing: one will do
                yield Member(name=member, body=_Checked(io.BytesIO(b"\0"), self))
            elif body is not None:
                yield from self._one(member, _Checked(body, self, inside=member, counts=False), depth + 1)
        if plain is not source:
            plain.inside = prefix
        while plain.read(CHUNK_BYTES):  # checksums stand at the end
            pass

    def _one(self, name: str, body: _Checked, depth: int) -> Iterator[Member]:
        if depth < MAX_DEPTH and name.endswith((*PACKINGS, DEB)) and self._enters(f"{name}/"):
            head = _head(body)
            body = _Checked(_Again(head, body), self, inside=name, counts=False)
            if _begins_like(name, head):
                yield from self.of_stream(name, body, f"{name}/", depth)
                return
        yield Member(name=name, body=body)

    def _of_deb(self, source: _Checked, prefix: str, depth: int) -> Iterator[Member]:
        """An ``ar`` of few parts: a header of 60 bytes, then the part, to an even length."""
        if source.read(8) != DEB_BEGINS:
            with self.damage_told(prefix):
                raise ValueError("it does not begin like a Debian package")
        found = False
        while header := source.read(60):
            with self.damage_told(prefix):
                if len(header) < 60 or header[58:] != b"`\n":
                    raise ValueError("a header is damaged")
                size_bytes = int(header[48:58])
                if size_bytes < 0:
                    raise ValueError("a header is damaged")
            name = header[:16].decode("ascii", "replace").rstrip(" /")
            part = _Checked(_Slice(source, size_bytes), self, inside=f"{prefix}{name}", counts=False)
            if name.startswith("data.tar") and is_archive(name):
                found = True
                yield from self.of_stream(name, part, prefix, depth)
            while part.read(CHUNK_BYTES):
                pass
            source.read(size_bytes % 2)
        if not found:
            with self.damage_told(prefix):
                raise ValueError("no data.tar is in it")


class _Checked(io.RawIOBase):
    """A stream whose damage is told as such, and whose bytes are counted."""

    def __init__(self, source: Source | IO[bytes], archive: _Archive, *, inside: str = "", counts: bool = True) -> None:
        self._source, self._archive, self.inside, self._counts = source, archive, inside, counts

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._archive.damage_told(self.inside):
            data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        if self._counts:
            self._archive.count(len(data))
        return len(data)


class _Slice:
    """The next ``size_bytes`` of a stream, and no less."""

    def __init__(self, source: Source, size_bytes: int) -> None:
        self._source, self._left_bytes = source, size_bytes

    def read(self, size: int, /) -> bytes:
        data = self._source.read(min(size, self._left_bytes))
        if not data and size and self._left_bytes:
            raise EOFError("it ends early")
        self._left_bytes -= len(data)
        return data


class _Again:
    """A stream of which the first bytes have been read already."""

    def __init__(self, head: bytes, rest: Source) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int, /) -> bytes:
        if not self._head:
            return self._rest.read(size)
        data, self._head = self._head[:size], self._head[size:]
        return data


class _Header(tarfile.TarInfo):
    """One that is damaged, or lacks at the end, is no end: tarfile would be silent about what follows."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        assert isinstance(tarfile_, _Tars)
        try:
            header = super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.zeros += 1
            raise
        except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
            if tarfile_.zeros:
                raise
            raise tarfile.ReadError(str(error)) from error
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        if tarfile_.zeros == 1:  # an end is two of them
            raise tarfile.ReadError("a block of zeros where a header should be")
        tarfile_.zeros = 0
        return header


class _Tars(tarfile.TarFile):
    """One tar, or several one behind the other, as ``cat`` makes them."""

    tarinfo = _Header
    zeros = 0
    """Blocks of zeros since the last member."""


def _head(body: Source) -> bytes:
    """The first block of a tar, or all there is."""
    head = b""
    while len(head) < tarfile.BLOCKSIZE and (more := body.read(tarfile.BLOCKSIZE - len(head))):
        head += more
    return head


def _begins_like(name: str, head: bytes) -> bool:
    if name.endswith(DEB):
        return head.startswith(DEB_BEGINS)
    if packed := next((begins for ending, begins in BEGINNINGS.items() if name.endswith(ending)), b""):
        return head.startswith(packed)
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # an empty one
        return True
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _clean(name: str) -> str:
    """Without what says nothing. It is a name and never a place, whatever is in it.

    >>> _clean("./usr//src/a.c"), _clean("/etc/passwd")
    ('usr/src/a.c', 'etc/passwd')
    """
    return PurePosixPath(name).as_posix().lstrip("/")


def _no_file(info: zipfile.ZipInfo) -> bool:
    mode = info.external_attr >> 16
    return info.is_dir() or (stat.S_IFMT(mode) not in (0, stat.S_IFREG))
