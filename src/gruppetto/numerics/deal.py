"""How the fragments of a model are dealt out to the shards of a syncer, each a process with fragments of its own.

The deal follows from the cut and the number of shards, so everybody computes the same one. Fragments are taken in the
order in which they are due, as many at a time as there are shards; each shard gets one of them, the largest goes to
the shard that has the least so far. So the shards take turns in time, and hold nearly the same number of elements: any
two differ by no more than the sizes within such a group do, the last one filled up with nothing.

>>> from gruppetto.numerics.fragments import fragment
>>> from gruppetto.numerics.layout import Layout, TensorSpec
>>> sizes = {"a": 7, "b": 5, "c": 4, "d": 4}
>>> tensors = tuple(TensorSpec(name=name, shape=(size,), dtype="float32") for name, size in sizes.items())
>>> whole = fragment(Layout(tensors=tensors), 4)
>>> [[piece.name for spec in part_of(whole, Shard(number=k, of=2)).fragments for piece in spec.pieces] for k in (1, 2)]
[['a', 'd'], ['b', 'c']]
>>> offsets_of(whole, Shard(number=2, of=2), sync_period=8)
(2, 4)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics.fragments import Fragmentation
from gruppetto.numerics.layout import Layout

__all__ = ["MAX_SHARDS", "ONE", "WHOLE", "Shard", "check_whole", "deal", "offsets_of", "part_of"]

MAX_SHARDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Number ``number`` of ``of`` shards, counted from 1.

    >>> str(Shard.parse("2/3")), Shard().is_whole
    ('2/3', True)
    """

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not (1 <= self.of <= MAX_SHARDS and 1 <= self.number <= self.of):
            raise SettingError(
                f"is {self.number}/{self.of}", where="shard", fix=f"use 1/S to S/S, with S up to {MAX_SHARDS}"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``NUMBER/OF``. Raises :class:`SettingError`."""
        number, _, of = text.partition("/")
        if not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in (number, of)):
            raise SettingError(f"is {text!r:.80}", where="shard", fix="use NUMBER/OF, as in 1/2")
        return cls(number=int(number), of=int(of))

    @property
    def is_whole(self) -> bool:
        """The one syncer of a run that has no other."""
        return self.of == 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


ONE = Shard()
"""The only one."""
WHOLE = str(ONE)


def deal(whole: Fragmentation, shards: int) -> tuple[tuple[int, ...], ...]:
    """By shard: which fragments of the cut are its own, ascending. Raises :class:`SettingError` for more shards than
    fragments."""
    if shards > whole.num_fragments:
        raise SettingError(
            f"{shards} shards for {whole.num_fragments} fragments",
            where="syncer.shards",
            fix=f"use {whole.num_fragments} or fewer, or more fragments",
        )
    load, hands = [0] * shards, [list[int]() for _ in range(shards)]
    for first in range(0, whole.num_fragments, shards):
        group = sorted(whole.fragments[first : first + shards], key=lambda spec: (-spec.numel, spec.index))
        free = sorted(range(shards), key=lambda shard: (load[shard], shard))
        for spec, shard in zip(group, free, strict=False):
            hands[shard].append(spec.index)
            load[shard] += spec.numel
    return tuple(map(tuple, hands))


def part_of(whole: Fragmentation, shard: Shard) -> Fragmentation:
    """What one shard has: its fragments, counted anew from 0."""
    if shard.is_whole:
        return whole
    own = deal(whole, shard.of)[shard.number - 1]
    fragments = tuple(replace(whole.fragments[p], index=q) for q, p in enumerate(own))
    return replace(whole, fragments=fragments, num_fragments=len(fragments))


def offsets_of(whole: Fragmentation, shard: Shard, sync_period: int) -> tuple[int, ...]:
    """When each fragment of a shard is due within H rounds: when it would be if one syncer had them all, so that what
    travels at a step is the same. Empty for the whole, whose schedule follows from its number of fragments."""
    if shard.is_whole:
        return ()
    return tuple(p * sync_period // whole.num_fragments for p in deal(whole, shard.of)[shard.number - 1])


def check_whole(layout: Layout, parts: Mapping[str, Fragmentation]) -> None:
    """Together the ``parts`` (by who says so) are the model: every element lies in one of them.

    Raises :class:`LayoutError` that names the first that overlap, or what nobody has.
    """
    spans: dict[str, list[tuple[int, int, str]]] = {tensor.name: [] for tensor in layout.tensors}
    for who, part in parts.items():
        for piece in (piece for spec in part.fragments for piece in spec.pieces if piece.numel):
            spans[piece.name].append((piece.start, piece.stop, who))
    for tensor in layout.tensors:
        at, before = 0, ""
        for start, stop, who in [*sorted(spans[tensor.name]), (tensor.numel, tensor.numel, "")]:
            if start < at:
                raise LayoutError(f"{before} and {who} both have {tensor.name!r}", where="shards", fix=_FIX)
            if start > at:
                raise LayoutError(f"nobody has elements {at} to {start} of {tensor.name!r}", where="shards", fix=_FIX)
            at, before = stop, who


_FIX = "start all shards of a run with one RUN.toml"
