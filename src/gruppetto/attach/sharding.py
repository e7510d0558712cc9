"""A model as fragments: which parameters take part, and where each piece of a fragment lies in them.

A fragment is one flat float32 vector in host memory; its pieces are whole parameters or runs of their rows. This file
knows a model that one process holds as a whole. A model spread over ranks needs another class with the same methods,
which reads and writes only its own rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics.fragments import Fragmentation, FragmentSpec, Piece
from gruppetto.numerics.layout import Layout, TensorSpec

__all__ = ["FlatModel", "flat_views", "plain_name"]

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
EXACT = {torch.float32, torch.float64}
"""Dtypes that hold any float32 value; the others round it."""

RESERVED_NAME = "__metadata__"
"""Where a safetensors file, as which the model is handed out, keeps something else."""

_OUTERMOST = ("module.", "_orig_mod.")
_ANYWHERE = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers (data parallel, ``torch.compile``, checkpointing) have put into it.

    >>> plain_name("module._orig_mod.h.0._checkpoint_wrapped_module.weight")
    'h.0.weight'
    """
    while name.startswith(_OUTERMOST):
        name = name.split(".", 1)[1]
    return ".".join(part for part in name.split(".") if part not in _ANYWHERE)


class FlatModel:
    """The floating-point parameters of ``model``, readable and writable by fragment.

    ``trainable_only`` leaves out what needs no gradient. A tensor with two names (tied weights) is one tensor under
    its first name. Buffers do not take part. Raises :class:`LayoutError` for a parameter that cannot be averaged.
    """

    def __init__(self, model: nn.Module, *, trainable_only: bool = True) -> None:
        self._model = model
        self._parameters: dict[str, nn.Parameter] = {}
        full_names: dict[str, str] = {}
        specs = []
        for wrapped, parameter in model.named_parameters(remove_duplicate=True):
            if trainable_only and not parameter.requires_grad:
                continue
            name = plain_name(wrapped)
            _check(name, parameter, trainable_only)
            other = full_names.setdefault(name, wrapped)
            if other != wrapped:
                raise LayoutError(
                    f"parameters {other!r} and {wrapped!r} have one name without what wrappers add to it ({name!r})",
                    where="model",
                    fix='rename one of them ("module" and "_orig_mod" are names that wrappers use)',
                )
            specs.append(TensorSpec(name=name, shape=tuple(parameter.shape), dtype=DTYPES[parameter.dtype]))
            self._parameters[name] = parameter
        if not specs:
            what = "trainable parameters" if trainable_only else "parameters"
            raise LayoutError(
                f"the model has no {what}", where="model", fix="set requires_grad on what is to be trained"
            )
        self.layout = Layout(tensors=tuple(specs))
        self.fragmentation: Fragmentation | None = None
        self.device = next(iter(self._parameters.values())).device

    @property
    def num_fragments(self) -> int:
        """P; 0 before :meth:`cut`."""
        return 0 if self.fragmentation is None else self.fragmentation.num_fragments

    def cut(self, fragmentation: Fragmentation) -> None:
        """Read and write along these pieces from now on."""
        self.fragmentation = fragmentation

    def numel(self, fragment: int) -> int:
        """Elements of one fragment."""
        assert self.fragmentation is not None
        return self.fragmentation.fragments[fragment].numel

    @torch.no_grad()
    def check_finite(self) -> None:
        """Raises :class:`SettingError` for a parameter that float32, in which the run is kept, cannot hold."""
        for name, parameter in self._parameters.items():
            if not torch.isfinite(parameter.detach().to(torch.float32)).all():
                raise SettingError(
                    "holds NaN or infinity as float32, so it cannot be the run's initial value",
                    where=f"parameter {name!r}",
                    fix="mend the model's initialisation, or the checkpoint it was loaded from",
                )

    def check_unchanged(self) -> None:
        """Raises :class:`LayoutError` if the model now has another parameter in place of one that takes part."""
        now = {plain_name(wrapped): parameter for wrapped, parameter in self._model.named_parameters()}
        held = {id(parameter) for parameter in now.values()}
        for spec in self.layout.tensors:
            name, parameter = spec.name, self._parameters[spec.name]
            # A parameter that has only got another name (pruning does that) still takes part.
            if id(parameter) not in held or now.get(name, parameter) is not parameter:
                raise LayoutError(
                    "has been replaced or removed since the model was attached: the run still has the old tensor",
                    where=f"parameter {name!r}",
                    fix="write new values in place (parameter.data.copy_), or make a new Learner",
                )
            if tuple(parameter.shape) != spec.shape or DTYPES.get(parameter.dtype) != spec.dtype:
                raise LayoutError(
                    f"was {spec} when the model was attached, and is {parameter.dtype} {tuple(parameter.shape)} now",
                    where=f"parameter {name!r}",
                    fix="change shapes and dtypes before the model is attached",
                )

    @torch.no_grad()
    def read(self, fragment: int, flat: NDArray[np.float32], *, non_blocking: bool = False) -> None:
        """flat ← the parameters of the fragment, as float32."""
        locals_, places = self._pairs(fragment, flat)
        torch._foreach_copy_(places, locals_, non_blocking=non_blocking)

    @torch.no_grad()
    def write(self, fragment: int, flat: NDArray[np.float32], *, non_blocking: bool = False) -> None:
        """The parameters of the fragment ← flat, in place, rounded to their own dtype."""
        locals_, places = self._pairs(fragment, flat)
        torch._foreach_copy_(locals_, places, non_blocking=non_blocking)

    @torch.no_grad()
    def round(self, fragment: int, flat: NDArray[np.float32]) -> None:
        """flat ← what a parameter holds once flat has been written to it. Nothing to do for float32.

        A base has to be rounded like this, or the rounding itself would be offered as an outer gradient.
        """
        for parameter, place in zip(*self._pairs(fragment, flat), strict=True):
            if parameter.dtype not in EXACT:
                place.copy_(place.to(parameter.dtype))

    def _pairs(self, fragment: int, flat: NDArray[np.float32]) -> tuple[list[Tensor], list[Tensor]]:
        assert self.fragmentation is not None
        return flat_views(self._parameters, self.fragmentation.fragments[fragment], flat)


def flat_views(
    tensors: Mapping[str, Tensor], spec: FragmentSpec, flat: NDArray[np.float32]
) -> tuple[list[Tensor], list[Tensor]]:
    """Views of equal shapes: the tensors or rows that make up a fragment, and their places in its ``flat`` vector."""
    assert flat.shape == (spec.numel,)
    whole = torch.from_numpy(flat)
    parts, places = [], []
    for piece in spec.pieces:
        part = _rows(tensors[piece.name].detach(), piece)
        parts.append(part)
        places.append(whole[piece.offset : piece.offset + piece.numel].view(part.shape))
    return parts, places


def _rows(tensor: Tensor, piece: Piece) -> Tensor:
    """The part of a tensor that a piece covers. Pieces are cut along rows, so a strided tensor needs no copy."""
    if piece.numel == tensor.numel():
        return tensor
    row_numel = tensor.numel() // tensor.shape[0]
    return tensor[piece.start // row_numel : piece.stop // row_numel]


def _check(name: str, parameter: Tensor, trainable_only: bool) -> None:
    where = f"parameter {name!r}"
    if name == RESERVED_NAME or not _is_text(name):
        raise LayoutError(
            "is a name that no safetensors file can hold", where=where, fix="give the parameter another name"
        )
    if parameter.dtype not in DTYPES:
        leave_out = "freeze it (requires_grad_(False))" if trainable_only else "make it a buffer"
        raise LayoutError(
            f"dtype {parameter.dtype} cannot be averaged",
            where=where,
            fix=f"{leave_out} or use " + ", ".join(sorted(DTYPES.values())),
        )
    if parameter.is_meta:
        raise LayoutError("is on the meta device, without values", where=where, fix="materialise the model first")
    if type(parameter.data) is not Tensor:
        raise LayoutError(
            f"is a {type(parameter.data).__name__}, not a plain tensor",
            where=where,
            fix="attach the model before sharding it; only models held whole by one process are supported",
        )


def _is_text(name: str) -> bool:
    """It has a form in UTF-8; half a surrogate pair has none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
