"""Who of a learner's ranks holds which elements, and who of several holders supplies them.

Every rank computes the same answer from the same list of what all of them hold, so nothing has to be agreed upon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gruppetto.errors import LayoutError
from gruppetto.numerics.fragments import FragmentSpec, Piece
from gruppetto.numerics.layout import Layout
from gruppetto.numerics.runs import Runs

__all__ = ["Held", "local_pieces", "part_pieces", "runs_in", "supplied"]

Held = Mapping[str, Runs]
"""By tensor: the runs of its flattened elements that a rank holds. A tensor of which it has nothing may be missing."""

SMALL_NUMEL = 4096
"""What several ranks hold and is not larger is supplied by one of them; larger runs they share out evenly."""


def supplied(layout: Layout, held_by_rank: Sequence[Held]) -> list[dict[str, Runs]]:
    """By rank: the part of what it holds that it supplies. Every element of the layout is supplied by exactly one.

    Raises :class:`LayoutError` if an element is held by nobody.
    """
    found: list[dict[str, list[tuple[int, int]]]] = [{} for _ in held_by_rank]
    for turn, tensor in enumerate(layout.tensors):
        changes: dict[int, tuple[list[int], list[int]]] = {0: ([], []), tensor.numel: ([], [])}
        for rank, held in enumerate(held_by_rank):
            for start, stop in held.get(tensor.name, Runs()):
                changes.setdefault(start, ([], []))[0].append(rank)
                changes.setdefault(stop, ([], []))[1].append(rank)
        holders: set[int] = set()
        places = sorted(changes)
        for start, stop in pairwise(places):
            begins, ends = changes[start]
            holders = holders.difference(ends).union(begins)
            if not holders:
                raise LayoutError(
                    f"elements {start} to {stop} are held by no rank of this learner",
                    where=f"parameter {tensor.name!r}",
                    fix="pass the process group of all ranks that hold this model together",
                )
            for rank, run in _dealt(sorted(holders), start, stop, turn):
                found[rank].setdefault(tensor.name, []).append(run)
    return [{name: Runs.of(runs) for name, runs in own.items()} for own in found]


def runs_in(spec: FragmentSpec, held: Held) -> Runs:
    """The runs of a fragment's flat vector that belong to ``held``."""
    found: list[tuple[int, int]] = []
    for piece in spec.pieces:
        runs = held.get(piece.name, Runs()).clipped(piece.start, piece.stop)
        found += runs.shifted(piece.offset - piece.start).bounds
    return Runs.of(found)


def local_pieces(spec: FragmentSpec, held: Held) -> FragmentSpec:
    """The fragment as a rank has it: the parts of its pieces that are held, end to end. None of them is empty."""
    pieces: list[Piece] = []
    numel = 0
    for piece in spec.pieces:
        for start, stop in held.get(piece.name, Runs()).clipped(piece.start, piece.stop):
            pieces.append(Piece(name=piece.name, start=start, stop=stop, offset=numel))
            numel += stop - start
    return FragmentSpec(index=spec.index, pieces=tuple(pieces), numel=numel)


def part_pieces(local: FragmentSpec, places: Runs, row_numel: Mapping[str, int]) -> FragmentSpec:
    """The whole rows of a rank's fragment that have an element at ``places`` of its vector, where they lie in it.

    ``row_numel``: elements of a row, by tensor; pieces consist of whole ones.

    >>> local = FragmentSpec(index=0, pieces=(Piece(name="w", start=6, stop=18, offset=0),), numel=12)
    >>> part_pieces(local, Runs.of([(4, 8)]), {"w": 3}).pieces
    (Piece(name='w', start=9, stop=15, offset=3),)
    """
    pieces: list[Piece] = []
    for piece in local.pieces:
        row, reached = row_numel[piece.name], 0
        for begin, end in places.clipped(piece.offset, piece.offset + piece.numel).shifted(-piece.offset):
            first, stop = max(reached, begin // row * row), -(-end // row) * row
            if first < stop:
                at = piece.start + first
                pieces.append(Piece(name=piece.name, start=at, stop=piece.start + stop, offset=piece.offset + first))
                reached = stop
    return FragmentSpec(index=local.index, pieces=tuple(pieces), numel=local.numel)


def _dealt(holders: list[int], start: int, stop: int, turn: int) -> list[tuple[int, tuple[int, int]]]:
    numel, ranks = stop - start, len(holders)
    if ranks == 1 or numel <= SMALL_NUMEL:
        return [(holders[turn % ranks], (start, stop))]
    cuts = [start + numel * part // ranks for part in range(ranks + 1)]
    return [(rank, (cuts[i], cuts[i + 1])) for i, rank in enumerate(holders)]
