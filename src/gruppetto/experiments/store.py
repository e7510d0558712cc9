"""What came of rides: one JSON line each, appended when the ride is over and never changed.

A run that is killed in the middle of a line leaves one that is not whole; it is left out, and its ride is made again.
Two runs may append to one file: a line is one write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gruppetto.experiments.ride import Ride

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


class Store:
    """The results in one file, by ride."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._results: dict[str, Result] = {line.hash: line.result for line in _lines(path)}

    def __contains__(self, ride: Ride) -> bool:
        return ride.hash in self._results

    def __getitem__(self, ride: Ride) -> Result:
        return self._results[ride.hash]

    def get(self, ride: Ride) -> Result | None:
        """The result of the ride, None if there is none yet."""
        return self._results.get(ride.hash)

    def __len__(self) -> int:
        return len(self._results)

    def add(self, ride: Ride, result: Result, *, took_s: float) -> None:
        """Keep it, on disk before this returns."""
        line = msgspec.json.encode(_Line(hash=ride.hash, ride=ride.said, result=result, took_s=round(took_s, 3)))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, (b"" if _ends_whole(descriptor) else b"\n") + line + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._results[ride.hash] = result


def _lines(path: Path) -> Iterator[_Line]:
    if not path.exists():
        return
    for raw in path.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(raw, type=_Line)
            ride = msgspec.convert(line.ride, Ride)
        except msgspec.MsgspecError:
            continue
        # Changed by hand, or a field means something else today: nobody knows what it is the result of.
        if ride.hash == line.hash:
            yield line


def _ends_whole(descriptor: int) -> bool:
    end = os.lseek(descriptor, 0, os.SEEK_END)
    return end == 0 or os.pread(descriptor, 1, end - 1) == b"\n"
