"""All tensors of Θ as one safetensors stream, for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gruppetto.numerics.fragments import Fragmentation
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.units import Fragment, Round
from gruppetto.runtime.parameters import Value
from gruppetto.runtime.tensorfile import tensors_header

__all__ = ["ModelStream"]


class ModelStream:
    """The whole model at one moment: a header, then the tensors in the order of the layout, float32.

    The values are borrowed for as long as the stream is read. No tensor is copied.
    """

    def __init__(self, layout: Layout, parts: Fragmentation, values: Mapping[Fragment, Value], round: Round) -> None:
        self.round, self.values = round, list(values.values())
        shapes = [(tensor.name, tensor.shape) for tensor in layout.tensors]
        self._header = tensors_header(shapes, {"round": str(round), "format": "pt"})
        self.length = len(self._header) + 4 * layout.numel
        self._pieces = _in_order(layout, parts, values)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._header
        yield from self._pieces


def _in_order(layout: Layout, parts: Fragmentation, values: Mapping[Fragment, Value]) -> Sequence[memoryview]:
    pieces: dict[str, list[tuple[int, memoryview]]] = {tensor.name: [] for tensor in layout.tensors}
    for spec in parts.fragments:
        data = values[Fragment(spec.index)].theta.data.cast("B")
        for piece in spec.pieces:
            whole = data[4 * piece.offset : 4 * (piece.offset + piece.numel)]
            pieces[piece.name].append((piece.start, whole))
    return [data for name in pieces for _, data in sorted(pieces[name], key=lambda found: found[0])]
