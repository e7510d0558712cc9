"""How a tar may be packed, and what unpacks it as a stream."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
from collections.abc import Callable
from typing import IO, Protocol, cast

from gruppetto.errors import DataError

__all__ = ["BEGINNINGS", "PACKINGS", "Source"]


class Source(Protocol):
    """Something that gives its bytes from the beginning to the end."""

    def read(self, size: int, /) -> bytes: ...


BUFFER_BYTES = 1 << 16


class _Parts:
    """What has been packed with xz or bzip2, in one part or in several.

    The files of the standard library end without a word where another part is damaged.
    """

    def __init__(self, source: Source, begin: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self._source, self._begin, self._part = source, begin, begin()

    def read(self, size: int, /) -> bytes:
        while True:
            packed = b""
            if self._part.eof:
                packed = self._part.unused_data.lstrip(b"\0")  # zeros between parts say nothing
                while not packed:
                    if not (more := self._source.read(BUFFER_BYTES)):
                        return b""
                    packed = more.lstrip(b"\0")
                self._part = self._begin()
            elif self._part.needs_input and not (packed := self._source.read(BUFFER_BYTES)):
                raise EOFError("it ends early")
            if data := self._part.decompress(packed, size):
                return data


def _gzip(source: Source) -> Source:
    return gzip.GzipFile(fileobj=cast(IO[bytes], source))


def _xz(source: Source) -> Source:
    return _Parts(source, lzma.LZMADecompressor)


def _bzip2(source: Source) -> Source:
    return _Parts(source, bz2.BZ2Decompressor)


def _zstd(source: Source) -> Source:
    """By the standard library from 3.14 on, or by pyarrow, which comes with ``datasets``."""
    for module, make in (("compression.zstd", "ZstdFile"), ("pyarrow", "CompressedInputStream")):
        try:
            opened = getattr(importlib.import_module(module), make)
        except ImportError:
            continue
        return cast(Source, opened(source) if make == "ZstdFile" else opened(source, "zstd"))
    raise DataError(
        "is packed with zstd, for which nothing is installed",
        where="corpus",
        fix="pip install 'gruppetto[hub]', or pack it with xz",
    )


PACKINGS: dict[str, Callable[[Source], Source]] = {
    ".tar": lambda source: source,
    ".tar.gz": _gzip,
    ".tgz": _gzip,
    ".tar.xz": _xz,
    ".txz": _xz,
    ".tar.bz2": _bzip2,
    ".tbz2": _bzip2,
    ".tar.zst": _zstd,
}
"""By the end of its name."""

BEGINNINGS = {
    ".tar.gz": b"\x1f\x8b",
    ".tgz": b"\x1f\x8b",
    ".tar.xz": b"\xfd7zXZ\0",
    ".txz": b"\xfd7zXZ\0",
    ".tar.bz2": b"BZh",
    ".tbz2": b"BZh",
    ".tar.zst": b"\x28\xb5\x2f\xfd",
}
"""What is packed begins with this; a plain tar with a header."""
