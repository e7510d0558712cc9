"""Reading a file of JSON lines that somebody else is still writing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gruppetto.trace.log import MAX_LINE_BYTES

__all__ = ["Tail"]

CHUNK_BYTES = 1 << 20


class Tail:
    """Gives each whole line of ``path`` once, as it is written. A file that is not there yet has no lines; one that was
    replaced, or cut below what was read, is begun again, which ``anew`` tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        """How much of the file has been given out."""
        self.anew = 0
        """How often it was begun again."""
        self._file: BinaryIO | None = None
        self._rest = b""

    def size(self) -> int:
        """What lies there now."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def written_at(self) -> float | None:
        """When it was written last, in seconds since 1970; long ago if it is not there."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    def lines(self, most_bytes: int) -> Iterator[bytes]:
        """New whole lines, without their ends, of about ``most_bytes`` at most."""
        self._follow()
        if self._file is None:
            return
        while most_bytes > 0:
            chunk = self._file.read(min(CHUNK_BYTES, most_bytes))
            if not chunk:
                return
            most_bytes -= len(chunk)
            self.read_bytes += len(chunk)
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b""  # no record of ours
            yield from whole

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _follow(self) -> None:
        """Open the file, or the one that lies in its place now."""
        try:
            there = self.path.stat()
        except OSError:
            return
        if not stat.S_ISREG(there.st_mode):
            return  # what is no file may keep its reader waiting for ever
        if self._file is not None:
            mine = os.fstat(self._file.fileno())
            if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino) and mine.st_size >= self.read_bytes:
                return
            self.close()
            self.anew += 1
        self._rest, self.read_bytes = b"", 0
        try:
            self._file = self.path.open("rb")
        except OSError:
            self._file = None
