"""Where the pieces of one fragment lie: in the model, and in the fragment's flat vector.

Both are looked up once. A fragment of whole plain parameters costs no Python for each of its tensors then: the
parameters are a list, and one call makes all views of the vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gruppetto.attach.holding import Hold
from gruppetto.numerics.fragments import FragmentSpec, Piece

__all__ = ["Places"]


class Places:
    """The pieces of ``spec``, a fragment as this rank has it.

    ``holds``: how this rank holds each parameter. A parameter stays the object that it is (what replaces one is
    refused, :meth:`~gruppetto.attach.sharding.FlatModel.check_unchanged`), its memory need not: ``.data`` may be set.
    """

    def __init__(self, spec: FragmentSpec, holds: Mapping[str, Hold]) -> None:
        self.spec = spec
        self._parts: list[Tensor] = [holds[piece.name].parameter for piece in spec.pieces]
        self._looked_up = [
            (number, holds[piece.name], piece)
            for number, piece in enumerate(spec.pieces)
            if not holds[piece.name].is_whole(piece)
        ]
        ends = [piece.offset + piece.numel for piece in spec.pieces]
        begins = [piece.offset for piece in spec.pieces]
        self._end_to_end = [0, *ends] == [*begins, spec.numel]
        self.gathered = tuple(sorted({piece.name for piece in spec.pieces if holds[piece.name].gathers}))
        """Names of what has to be gathered to be read; in one order at all ranks."""

    def parts(self, gathered: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """The tensors or rows of the model, in the order of the pieces. Without gradients only.

        ``gathered``: by name, what does not lie here.
        """
        parts = self._parts.copy()
        for number, hold, piece in self._looked_up:
            whole = gathered[piece.name] if gathered is not None and piece.name in gathered else hold.own()
            parts[number] = hold.rows(whole, piece)
        return parts

    def within(self, flat: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """The same places of the fragment's vector, in the shapes of ``parts``."""
        assert flat.shape == (self.spec.numel,)
        if self._end_to_end:
            return list(_unflatten(flat, parts))
        pieces = self.spec.pieces
        return [_place(flat, piece).view(part.shape) for piece, part in zip(pieces, parts, strict=True)]

    def of_dtypes(self, wanted: Callable[[torch.dtype], bool]) -> list[Piece]:
        """The pieces of parameters of such a dtype."""
        return [piece for piece, part in zip(self.spec.pieces, self._parts, strict=True) if wanted(part.dtype)]


def _place(flat: Tensor, piece: Piece) -> Tensor:
    return flat[piece.offset : piece.offset + piece.numel]


_unflatten: Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]] = torch._utils._unflatten_dense_tensors
