"""What came of rides: one JSON line each, appended when the ride is over and never changed.

A run that is killed in the middle of a line leaves one that is not whole; it is left out, and its ride is made again.
Two runs may append to one file: a line is one write. On a network file system that is not enough: there they take turns
(:mod:`gruppetto.experiments.sharing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gruppetto.experiments.ride import Ride
from gruppetto.files import open_file

__all__ = ["Result", "Store"]

Result = dict[str, Any]
"""Figures by name; ``loss`` is None where it is no number."""


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    hash: str
    ride: dict[str, Any]
    """What it says beyond the defaults."""
    result: Result
    took_s: float
    """Seconds of the machine that it happened to run on."""


class _Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What every result has."""

    loss: float | None


class Store:
    """The results in one file, by ride."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out = 0
        """Lines that are not whole, or are of another version: their rides are made again."""
        self._results: dict[str, Result] = {}
        self._read_bytes = 0
        self.look()

    def look(self) -> None:
        """See what others have added by now; what was seen once stays."""
        try:
            with open_file(self.path) as file:
                if os.fstat(file.fileno()).st_size == self._read_bytes:
                    return
                raw = file.read()
        except FileNotFoundError:
            return
        self._read_bytes, self.left_out = len(raw), 0
        for line in _lines(raw):
            if line is None:
                self.left_out += 1
            else:
                self._results[line.hash] = line.result

    def __contains__(self, ride: Ride) -> bool:
        return ride.hash in self._results

    def __getitem__(self, ride: Ride) -> Result:
        return self._results[ride.hash]

    def get(self, ride: Ride) -> Result | None:
        """The result of the ride, None if there is none yet."""
        return self._results.get(ride.hash)

    def __len__(self) -> int:
        return len(self._results)

    def try_out(self) -> None:
        """Raises :class:`OSError` now if nothing could be kept later."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666))

    def add(self, ride: Ride, result: Result, *, took_s: float) -> None:
        """Keep it, on disk before this returns. Raises :class:`OSError`."""
        line = msgspec.json.encode(_Line(hash=ride.hash, ride=ride.said, result=result, took_s=round(took_s, 3)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            rest = (b"" if _ends_whole(descriptor) else b"\n") + line + b"\n"
            while rest:  # one write, unless the disk is nearly full
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        finally:
            os.close(descriptor)
        self._results[ride.hash] = result


def _lines(content: bytes) -> Iterator[_Line | None]:
    for raw in content.splitlines():
        if raw.strip():
            yield _line(raw)


def _line(raw: bytes) -> _Line | None:
    try:
        line = msgspec.json.decode(raw, type=_Line)
        ride = msgspec.convert(line.ride, Ride)
        msgspec.convert(line.result, _Ending)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # Changed by hand, or a field means something else today: nobody knows what it is the result of.
    return line if ride.hash == line.hash else None


def _ends_whole(descriptor: int) -> bool:
    end = os.lseek(descriptor, 0, os.SEEK_END)
    return end == 0 or os.pread(descriptor, 1, end - 1) == b"\n"
