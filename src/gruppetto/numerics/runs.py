"""Runs: which elements of a flat vector somebody holds, as ascending, disjoint, half-open intervals.

A rank of a learner holds some rows of each tensor, and so some runs of each fragment. Its own vector is those runs, end
to end; on the wire they are a short text beside the body.

>>> runs = Runs.of([(4, 6), (0, 2), (6, 9)])
>>> runs, runs.numel, Runs.decode(runs.encode(), numel=9) == runs
(Runs(bounds=((0, 2), (4, 9))), 7, True)
>>> runs.within(Runs.of([(0, 10)])), Runs.of([(5, 7)]).within(runs)
(Runs(bounds=((0, 2), (4, 9))), Runs(bounds=((3, 5),)))
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gruppetto.errors import ProtocolError

__all__ = ["MAX_RUNS", "MAX_RUNS_CHARS", "Runs"]

MAX_RUNS = 8192
"""Of one fragment at one rank: one for each tensor that it holds rows of."""
MAX_RUNS_CHARS = 60_000
"""Of their text, which travels in a header."""


@dataclass(frozen=True, slots=True)
class Runs:
    """``bounds``: (start, stop) of each run. Made by :meth:`of`, they are ascending, apart, and none is empty."""

    bounds: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, bounds: Iterable[tuple[int, int]]) -> Runs:
        """From disjoint intervals in any order; empty ones go, adjacent ones become one."""
        joined: list[tuple[int, int]] = []
        for start, stop in sorted((start, stop) for start, stop in bounds if start < stop):
            if joined and joined[-1][1] == start:
                joined[-1] = (joined[-1][0], stop)
            else:
                assert not joined or joined[-1][1] < start, "they overlap"
                joined.append((start, stop))
        return cls(tuple(joined))

    @property
    def numel(self) -> int:
        return sum(stop - start for start, stop in self.bounds)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.bounds)

    def clipped(self, start: int, stop: int) -> Runs:
        """What of them lies between ``start`` and ``stop``."""
        first = bisect_right(self.bounds, start, key=lambda run: run[1])
        found = []
        for begin, end in self.bounds[first:]:
            if begin >= stop:
                break
            found.append((max(begin, start), min(end, stop)))
        return Runs(tuple(found))

    def shifted(self, by: int) -> Runs:
        return Runs(tuple((start + by, stop + by) for start, stop in self.bounds))

    def within(self, held: Runs) -> Runs:
        """Where these elements lie in the vector that holds ``held``, end to end; all of them have to be there."""
        found, offset = [], 0
        for start, stop in held:
            found += [(a - start + offset, b - start + offset) for a, b in self.clipped(start, stop)]
            offset += stop - start
        places = Runs.of(found)
        assert places.numel == self.numel, "some of them are not held"
        return places

    def encode(self) -> str:
        """Gap and length of each run as variable-length numbers, in base64url."""
        data, at = bytearray(), 0
        for start, stop in self.bounds:
            _append(data, start - at)
            _append(data, stop - start)
            at = stop
        return base64.urlsafe_b64encode(data).decode("ascii")

    @classmethod
    def decode(cls, text: str, numel: int) -> Runs:
        """The runs in a vector of ``numel`` elements that a text names. Raises :class:`ProtocolError`."""
        if len(text) > MAX_RUNS_CHARS:
            raise ProtocolError(f"the runs of a body take {len(text)} characters; at most {MAX_RUNS_CHARS} are allowed")
        try:
            data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise ProtocolError("the runs of a body are not base64url") from None
        numbers = _numbers(data)
        if len(numbers) % 2 or len(numbers) > 2 * MAX_RUNS:
            raise ProtocolError(
                f"the runs of a body are {len(numbers)} numbers; pairs are expected, {MAX_RUNS} at most"
            )
        found: list[tuple[int, int]] = []
        at = 0
        for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
            if not length or (found and not gap):
                raise ProtocolError("the runs of a body are not apart, or empty")
            found.append((at + gap, at + gap + length))
            at += gap + length
        if at > numel:
            raise ProtocolError(f"the runs of a body reach element {at} of {numel}")
        return cls(tuple(found))


def _append(data: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _numbers(data: bytes) -> list[int]:
    found: list[int] = []
    number = shift = 0
    for octet in data:
        number |= (octet & 0x7F) << shift
        shift += 7
        if shift > 63:
            raise ProtocolError("the runs of a body hold an absurdly large number")
        if not octet & 0x80:
            found.append(number)
            number = shift = 0
    if shift:
        raise ProtocolError("the runs of a body are cut short")
    return found
