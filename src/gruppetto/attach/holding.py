"""What one rank holds of a parameter, and how its rows are read and written.

A plain tensor is held whole; of a distributed one (``DTensor``) the block that lies here
(:mod:`gruppetto.attach.blocks`).
"""

from __future__ import annotations

import sys

from torch import Tensor, nn

from gruppetto.numerics.fragments import Piece
from gruppetto.numerics.runs import Runs

__all__ = ["Hold", "hold", "is_distributed"]


class Hold:
    """A plain parameter: all of it is here.

    ``runs``: the elements, of the flattened whole, that are here; ``shape``: that of what is here; ``gathers``: it has
    to be gathered to be read.
    """

    gathers = False

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.shape = tuple(parameter.shape)
        self.runs = Runs.of([(0, parameter.numel())])

    def is_whole(self, piece: Piece) -> bool:
        """The piece is the parameter itself, as it lies in this process."""
        return piece.numel == self.runs.numel

    def own(self) -> Tensor:
        """What lies in this process, sharing its memory."""
        return self.parameter.detach()

    def read(self) -> Tensor:
        """What this rank holds: its own memory, unless it had to be gathered."""
        return self.own()

    def rows(self, tensor: Tensor, piece: Piece) -> Tensor:
        """The part of ``tensor``, which has :attr:`shape`, that a piece covers.

        Pieces are cut along rows, so a strided tensor needs no copy.
        """
        if piece.numel == tensor.numel():
            return tensor
        row_numel = tensor.numel() // tensor.shape[0]
        first = self.runs.bounds[0][0]
        return tensor[(piece.start - first) // row_numel : (piece.stop - first) // row_numel]

    def write_rows(self, start: int, values: Tensor) -> None:
        raise AssertionError("it is written in place")

    def to_global(self, tensor: Tensor) -> Tensor:
        """A tensor of :attr:`shape` as the whole that it is a part of."""
        return tensor

    @property
    def needed(self) -> Runs:
        """The elements, whole rows of them, out of which what lies here can be made."""
        return self.runs

    def place(self, values: Tensor) -> Tensor:
        """Those elements of another tensor of the parameter's shape, end to end, as that tensor placed alike."""
        return self.to_global(values.view(self.shape))

    def flat(self, tensor: Tensor) -> Tensor:
        """The elements :attr:`runs` of a tensor that is placed as the parameter is, end to end."""
        return tensor.reshape(-1)

    def to_local(self, tensor: Tensor) -> Tensor:
        """The inverse, of a whole in whatever form."""
        whole: Tensor = tensor.full_tensor() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]
        return whole


def hold(name: str, parameter: nn.Parameter) -> Hold:
    """How this rank holds a parameter. Raises :class:`LayoutError` for one that is in no plain blocks."""
    if not is_distributed(parameter.detach()):
        return Hold(parameter)
    from gruppetto.attach.blocks import hold_block

    return hold_block(name, parameter)


def is_distributed(tensor: Tensor) -> bool:
    """It is a ``DTensor``; found out without its module, which is there if one is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
