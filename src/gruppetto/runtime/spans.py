"""Which bytes of a state somebody wants, where they lie, and in which requests they are asked for. Pure.

A learner that is alone wants all of it; a rank of many wants what it holds of every tensor. A donor of many ranks has
its state in portions, one at each of them. So any number of ranks takes from any other, however either is sharded: what
is wanted and what lies somewhere are both runs of the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gruppetto.numerics.runs import Runs
from gruppetto.runtime.donation import ALIGN_BYTES, Manifest, Portion

__all__ = ["GAP_BYTES", "Needs", "Request", "everything", "places_of", "requests_for"]

Needs = Sequence[Runs]
"""By tensor of a manifest: the bytes of it that are wanted."""
GAP_BYTES = 1 << 16
"""Bytes between two that are wanted come along, up to so many: they cost less than another request."""

Span = tuple[int, int, int]
"""Start and stop in the donor's bytes, and where it goes in those that are kept here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Bytes ``start`` to ``stop`` of a cut, from one address; ``spans`` of them are kept."""

    address: str
    """"" : where the manifest came from."""
    start: int
    stop: int
    spans: tuple[Span, ...]
    goes_to: int | None
    """Where all of it goes as it is, padding too; None if it has to be taken apart."""


def everything(manifest: Manifest) -> Needs:
    """For a learner of one rank."""
    return [Runs.of([(0, tensor.payload_bytes)]) for tensor in manifest.tensors]


def places_of(needs: Needs) -> list[int]:
    """Where each tensor's wanted bytes begin, put end to end and aligned; one more for where all of them end."""
    places = [0]
    for runs in needs:
        places.append(-(-(places[-1] + runs.numel) // ALIGN_BYTES) * ALIGN_BYTES)
    return places


def requests_for(manifest: Manifest, needs: Needs) -> list[Request]:
    """All that is wanted, each byte once, in requests of ``manifest.chunk_bytes`` at most; in order of where they
    begin, so that all portions are drawn upon at a time."""
    portions = manifest.portions or (Portion(address="", spans=((0, manifest.total_bytes),)),)
    wanted = list(_wanted(manifest, needs))
    found = [
        request
        for portion in portions
        for request in _grouped(
            portion.address,
            _common(wanted, portion.spans),
            manifest.chunk_bytes,
            gaps_are_padding=not manifest.portions,
        )
    ]
    return sorted(found, key=lambda request: request.start)


def _wanted(manifest: Manifest, needs: Needs) -> Iterator[Span]:
    for tensor, runs, (place, _) in zip(manifest.tensors, needs, pairwise(places_of(needs)), strict=True):
        for start, stop in runs:
            yield tensor.offset + start, tensor.offset + stop, place
            place += stop - start


def _common(wanted: Sequence[Span], here: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """What of the one lies in the other; both are in order."""
    at = 0
    for start, stop, place in wanted:
        while at < len(here) and here[at][1] <= start:
            at += 1
        for n in range(at, len(here)):
            low, high = here[n]
            if low >= stop:
                break
            first = max(start, low)
            yield first, min(stop, high), place + first - start


def _grouped(address: str, spans: Iterator[Span], most_bytes: int, *, gaps_are_padding: bool) -> Iterator[Request]:
    group: list[Span] = []
    for start, stop, place in spans:
        while start < stop:
            if group and (start - group[-1][1] > GAP_BYTES or start - group[0][0] >= most_bytes):
                yield _request(address, group, gaps_are_padding)
                group = []
            first = group[0][0] if group else start
            end = min(stop, first + most_bytes)
            group.append((start, end, place))
            place += end - start
            start = end
    if group:
        yield _request(address, group, gaps_are_padding)


def _request(address: str, group: list[Span], gaps_are_padding: bool) -> Request:
    moved = {place - start for start, _, place in group}
    closed = gaps_are_padding or all(a[1] == b[0] for a, b in pairwise(group))  # what others have may lie between
    return Request(
        address=address,
        start=group[0][0],
        stop=group[-1][1],
        spans=tuple(group),
        goes_to=group[0][2] if len(moved) == 1 and closed else None,
    )
