"""All tensors of Θ as one safetensors stream, for evaluation and export."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from gruppetto.numerics.deal import ONE, Shard
from gruppetto.numerics.fragments import Fragmentation
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.units import Fragment, Round
from gruppetto.runtime.parameters import Value
from gruppetto.runtime.tensorfile import tensors_header

__all__ = ["ModelStream", "piece_name"]


class ModelStream:
    """The whole model at one moment: a header, then the tensors in the order of the layout, float32.

    A shard gives the pieces that it has, each a flat tensor under a name of :func:`piece_name`, and in the metadata the
    shapes of all tensors. The values are borrowed for as long as the stream is read. No tensor is copied.
    """

    def __init__(
        self,
        layout: Layout,
        parts: Fragmentation,
        values: Mapping[Fragment, Value],
        round: Round,
        shard: Shard = ONE,
    ) -> None:
        self.round, self.values = round, list(values.values())
        if not shard.is_whole:
            said = {
                "round": str(round),
                "shard": str(shard),
                "shapes": json.dumps([[t.name, t.shape] for t in layout.tensors]),
            }
            pieces = [piece for spec in parts.fragments for piece in spec.pieces]
            named = [(piece_name(piece.name, piece.start), (piece.numel,)) for piece in pieces]
            self._header = tensors_header(named, said)
            self.length = len(self._header) + 4 * sum(piece.numel for piece in pieces)
            self._pieces: Sequence[memoryview] = [
                values[Fragment(spec.index)].theta.data.cast("B")[: 4 * spec.numel] for spec in parts.fragments
            ]
            return
        shapes = [(tensor.name, tensor.shape) for tensor in layout.tensors]
        self._header = tensors_header(shapes, {"round": str(round), "format": "pt"})
        self.length = len(self._header) + 4 * layout.numel
        self._pieces = _in_order(layout, parts, values)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._header
        yield from self._pieces


def piece_name(tensor: str, start: int) -> str:
    """Of the elements of a tensor from ``start`` on, as a shard hands them out.

    >>> piece_name("h.0.weight", 1024)
    'h.0.weight@1024'
    """
    return f"{tensor}@{start}"


def _in_order(layout: Layout, parts: Fragmentation, values: Mapping[Fragment, Value]) -> Sequence[memoryview]:
    pieces: dict[str, list[tuple[int, memoryview]]] = {tensor.name: [] for tensor in layout.tensors}
    for spec in parts.fragments:
        data = values[Fragment(spec.index)].theta.data.cast("B")
        for piece in spec.pieces:
            whole = data[4 * piece.offset : 4 * (piece.offset + piece.numel)]
            pieces[piece.name].append((piece.start, whole))
    return [data for name in pieces for _, data in sorted(pieces[name], key=lambda found: found[0])]
