"""How a model is cut into fragments, each synchronised on its own (paper, balanced tensor fragmentation).

The cut is a pure function of the layout and three settings, so everybody computes the same one and only a
hash has to be compared. A fragment is a list of pieces; a piece is a whole tensor, or some of its rows if
the tensor is merged by the plain mean (radial-directional averaging needs the norm of the whole tensor, so
those stay whole).

>>> from gruppetto.numerics.layout import Layout, TensorSpec
>>> sizes = {"a": 7, "b": 5, "c": 4, "d": 4}
>>> tensors = tuple(TensorSpec(name=name, shape=(size,), dtype="float32") for name, size in sizes.items())
>>> cut = fragment(Layout(tensors=tensors), 2)
>>> [[piece.name for piece in part.pieces] for part in cut.fragments]
[['a', 'd'], ['b', 'c']]
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import SettingError
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.numerics.merge import rule_for

__all__ = ["FRAGMENTERS", "FragmentSpec", "Fragmentation", "Piece", "fragment"]

MAX_FRAGMENTS = 4096
"""More would make a fragment's fixed costs (a message, a file, a round) outweigh its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements ``start`` to ``stop`` of a flattened tensor, lying at ``offset`` in the fragment."""

    name: str
    start: int
    stop: int
    offset: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentSpec:
    """One fragment: its pieces in the order of the layout, laid end to end in one flat float32 vector."""

    index: int
    pieces: tuple[Piece, ...]
    numel: int

    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each piece starts and stops in the flat vector: two arrays, one entry a piece."""
        starts = np.array([piece.offset for piece in self.pieces], np.int64)
        return starts, starts + np.array([piece.numel for piece in self.pieces], np.int64)


@dataclass(frozen=True, kw_only=True)
class Fragmentation:
    """The whole cut: every element of the layout lies in exactly one piece of one fragment.

    ``notice`` is for the user if the number of fragments had to be lowered, else "".
    """

    fragments: tuple[FragmentSpec, ...]
    how: str
    num_fragments: int
    notice: str

    @cached_property
    def fragmentation_hash(self) -> str:
        """32 hexadecimal digits over every piece of every fragment."""
        cut = [[[p.name, p.start, p.stop, p.offset] for p in part.pieces] for part in self.fragments]
        return hashlib.sha256(json.dumps(cut, separators=(",", ":")).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some rows of a tensor, not yet in any fragment. ``order`` is the tensor's place in the layout."""

    order: int
    name: str
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


# A bin is what becomes a fragment; a fragmenter deals the layout into at most ``num_fragments`` of them.
_Bins = list[list[_Slice]]
_Fragmenter = Callable[[Layout, int, Callable[[str], str]], _Bins]


def _balanced(layout: Layout, num_fragments: int, merge_of: Callable[[str], str]) -> _Bins:
    """Longest processing time first: the largest piece goes into the smallest bin (Graham 1969).

    The fullest bin holds at most 4/3 − 1/(3P) of the best possible. Ties: by name, then the lowest bin.
    """
    fair_share = -(-layout.numel // num_fragments)
    slices: list[_Slice] = []
    for order, tensor in enumerate(layout.tensors):
        slices += _rows(order, tensor, fair_share if merge_of(tensor.name) == "mean" else layout.numel)
    bins: _Bins = [[] for _ in range(_filled(num_fragments, slices))]
    smallest = [(0, index) for index in range(len(bins))]
    for piece in sorted(slices, key=lambda piece: (-piece.numel, piece.name, piece.start)):
        size, index = heapq.heappop(smallest)
        bins[index].append(piece)
        heapq.heappush(smallest, (size + piece.numel, index))
    return bins


def _tensor(layout: Layout, num_fragments: int, merge_of: Callable[[str], str]) -> _Bins:
    """Whole tensors dealt round in the order of the layout, whatever their size."""
    slices = [_Slice(order, tensor.name, 0, tensor.numel) for order, tensor in enumerate(layout.tensors)]
    return _deal([[piece] for piece in slices], num_fragments)


def _layer(layout: Layout, num_fragments: int, merge_of: Callable[[str], str]) -> _Bins:
    """Whole blocks dealt round (Streaming DiLoCo's strided pattern).

    A tensor outside any numbered block is a block of its own.
    """
    blocks: dict[str, list[_Slice]] = {}
    for order, tensor in enumerate(layout.tensors):
        block = re.match(r"(?:.*?\.)?\d+(?=\.)", tensor.name)
        blocks.setdefault(block[0] if block else tensor.name, []).append(_Slice(order, tensor.name, 0, tensor.numel))
    return _deal(list(blocks.values()), num_fragments)


FRAGMENTERS: dict[str, _Fragmenter] = {"balanced": _balanced, "layer": _layer, "tensor": _tensor}


def fragment(
    layout: Layout,
    num_fragments: int,
    how: str = "balanced",
    merge_of: Callable[[str], str] | None = None,
) -> Fragmentation:
    """Cut a model into ``num_fragments`` fragments, or fewer (with a notice) if it has too few tensors.

    ``merge_of`` gives the merge rule of a tensor by name; the default is :func:`rule_for`. Raises
    :class:`SettingError` for an unknown ``how`` or an impossible number.
    """
    if how not in FRAGMENTERS:
        raise SettingError(f"unknown fragmenter {how!r}", where="fragments", fix=f"use one of {sorted(FRAGMENTERS)}")
    if not 1 <= num_fragments <= MAX_FRAGMENTS:
        raise SettingError(f"num_fragments is {num_fragments}", where="fragments", fix=f"use 1 to {MAX_FRAGMENTS}")
    if merge_of is None:
        shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
        merge_of = partial(_default_rule, shapes)
    bins = FRAGMENTERS[how](layout, num_fragments, merge_of)
    notice = ""
    if len(bins) < num_fragments:
        unit = "blocks" if how == "layer" else "tensors"
        notice = f"num_fragments lowered from {num_fragments} to {len(bins)}: the model has too few {unit}"
    return Fragmentation(
        fragments=tuple(_specify(index, bin_) for index, bin_ in enumerate(bins)),
        how=how,
        num_fragments=len(bins),
        notice=notice,
    )


def _default_rule(shapes: dict[str, tuple[int, ...]], name: str) -> str:
    return rule_for(name, shapes[name])


def _rows(order: int, tensor: TensorSpec, at_most: int) -> list[_Slice]:
    """The tensor as one slice, or as the fewest even runs of rows that stay near ``at_most`` elements."""
    if tensor.numel <= at_most:
        return [_Slice(order, tensor.name, 0, tensor.numel)]
    rows = tensor.shape[0]
    parts = min(rows, -(-tensor.numel // at_most))
    cuts = [rows * part // parts * (tensor.numel // rows) for part in range(parts + 1)]
    return [_Slice(order, tensor.name, start, stop) for start, stop in pairwise(cuts)]


def _filled(num_fragments: int, slices: Sequence[_Slice]) -> int:
    """The number of fragments none of which is left without elements."""
    return max(1, min(num_fragments, sum(piece.numel > 0 for piece in slices)))


def _deal(groups: Sequence[list[_Slice]], num_fragments: int) -> _Bins:
    """Groups in turn, one bin after the other; groups without elements take no turn and go with the first."""
    filled = [group for group in groups if any(piece.numel for piece in group)]
    empty = [group for group in groups if not any(piece.numel for piece in group)]
    bins: _Bins = [[] for _ in range(max(1, min(num_fragments, len(filled))))]
    for turn, group in enumerate(filled):
        bins[turn % len(bins)] += group
    for group in empty:
        bins[0] += group
    return bins


def _specify(index: int, slices: Sequence[_Slice]) -> FragmentSpec:
    pieces: list[Piece] = []
    offset = 0
    for piece in sorted(slices, key=lambda piece: (piece.order, piece.start)):
        pieces.append(Piece(name=piece.name, start=piece.start, stop=piece.stop, offset=offset))
        offset += piece.numel
    return FragmentSpec(index=index, pieces=tuple(pieces), numel=offset)
