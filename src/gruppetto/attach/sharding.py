"""A model as fragments: which parameters take part, and where each piece of a fragment lies in them.

A fragment is one flat float32 vector in host memory; its pieces are whole parameters or runs of their rows. Of a model
that is spread over ranks, each rank reads and writes what it holds (:mod:`gruppetto.attach.holding`): its vector of a
fragment is the rows that it has, end to end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gruppetto.attach.holding import Hold, hold, is_distributed
from gruppetto.attach.overlaps import shared_elements
from gruppetto.attach.places import Places
from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics.fragments import Fragmentation, FragmentSpec, Piece
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.numerics.runs import Runs
from gruppetto.numerics.shares import Held, local_pieces, part_pieces, runs_in
from gruppetto.runtime.transfers import Share

__all__ = ["FlatModel", "plain_name"]

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
    its first name. Buffers do not take part. Of distributed tensors the layout has the whole, values are this rank's.
    Raises :class:`LayoutError` for a parameter that cannot be averaged.
    """

    def __init__(self, model: nn.Module, *, trainable_only: bool = True) -> None:
        self._model = model
        self._parameters: dict[str, nn.Parameter] = {}
        self._holds: dict[str, Hold] = {}
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
            self._holds[name] = hold(name, parameter)
        if not specs:
            what = "trainable parameters" if trainable_only else "parameters"
            raise LayoutError(
                f"the model has no {what}", where="model", fix="set requires_grad on what is to be trained"
            )
        if not any(parameter.numel() for parameter in self._parameters.values()):
            raise LayoutError(
                "its trainable parameters have no elements" if trainable_only else "its parameters have no elements",
                where="model",
                fix="give them a shape without a 0",
            )
        _check_apart(self._parameters)
        self.layout = Layout(tensors=tuple(specs))
        self.fragmentation: Fragmentation | None = None
        self.device = next(iter(self._parameters.values())).device
        self._on_one_device = len({p.device for p in self._parameters.values()}) == 1
        self._supplies: Held | None = None
        self._local: tuple[FragmentSpec, ...] = ()
        self._read_all: tuple[Places, ...] = ()
        self._read_supplied: tuple[Places, ...] = ()
        self._written: tuple[Places, ...] = ()
        """Where a fragment is written in place; what has to be gathered is not."""
        self._rounded: tuple[list[Piece], ...] = ()
        self._shares: tuple[Share, ...] = ()

    @property
    def num_fragments(self) -> int:
        """P; 0 before :meth:`cut`."""
        return 0 if self.fragmentation is None else self.fragmentation.num_fragments

    @property
    def on_one_gpu(self) -> bool:
        """All of it is on the GPU :attr:`device`: copies may run beside the host, on a stream of it. Of a model on
        several devices that stream would order nothing for the others, so there the host waits."""
        return self.device.type == "cuda" and self._on_one_device

    @property
    def held(self) -> dict[str, Runs]:
        """By parameter: the runs of its elements that this rank holds."""
        return {name: here.runs for name, here in self._holds.items()}

    def spread(self, supplies: Held) -> None:
        """The model is one of several ranks', of which this one supplies so much; said before :meth:`cut`."""
        self._supplies = supplies

    def cut(self, fragmentation: Fragmentation) -> None:
        """Read and write along these pieces from now on."""
        self.fragmentation = fragmentation
        self._local = given = fragmentation.fragments
        if self._supplies is not None:
            held, supplies = self.held, self._supplies
            self._local = tuple(local_pieces(spec, held) for spec in fragmentation.fragments)
            shares = []
            for spec in fragmentation.fragments:
                have, give = runs_in(spec, held), runs_in(spec, supplies)
                shares.append(Share(held=have, supplied=give, places=give.within(have)))
            self._shares = tuple(shares)
            rows = {name: max(1, prod(here.shape[1:])) for name, here in self._holds.items()}
            given = tuple(part_pieces(spec, s.places, rows) for spec, s in zip(self._local, shares, strict=True))
        self._read_all = self._read_supplied = self._written = tuple(Places(spec, self._holds) for spec in self._local)
        if given is not self._local:
            self._read_supplied = tuple(Places(spec, self._holds) for spec in given)
        if any(places.gathered for places in self._read_all):
            self._written = tuple(Places(self._in_place(spec), self._holds) for spec in self._local)
        self._rounded = tuple(places.of_dtypes(lambda dtype: dtype not in EXACT) for places in self._read_all)

    def share(self, fragment: int) -> Share | None:
        """What this rank moves of a fragment; None if it has the model to itself."""
        return self._shares[fragment] if self._shares else None

    def numel(self, fragment: int) -> int:
        """Elements of one fragment that are here: all of them, unless the model is spread over ranks."""
        return self._local[fragment].numel

    @torch.no_grad()
    def check_finite(self) -> None:
        """Raises :class:`SettingError` for a parameter that float32, in which the run is kept, cannot hold."""
        for name, here in self._holds.items():
            if not torch.isfinite(here.own().to(torch.float32)).all():
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

    def gather_shards(self) -> None:
        """Let go of what the last forward pass has gathered: the next one must see what has been written meanwhile."""
        fsdp = sys.modules.get("torch.distributed.fsdp")  # which takes a while to import, and is there if it is used
        for module in self._model.modules():
            if fsdp is not None and isinstance(module, fsdp.FSDPModule):
                module.reshard()

    @torch.no_grad()
    def read(self, fragment: int, flat: NDArray[np.float32], *, non_blocking: bool = False) -> None:
        """flat ← the parameters of the fragment, as float32. Collective if some have to be gathered for it."""
        self._read(self._read_all[fragment], fragment, flat, non_blocking=non_blocking)

    @torch.no_grad()
    def read_supplied(self, fragment: int, flat: NDArray[np.float32], *, non_blocking: bool = False) -> None:
        """The same of the elements that this rank supplies to the run, and of what lies in one row with them; what
        else is in ``flat`` stays."""
        self._read(self._read_supplied[fragment], fragment, flat, non_blocking=non_blocking)

    def _read(self, places: Places, fragment: int, flat: NDArray[np.float32], *, non_blocking: bool) -> None:
        # All of the fragment that is to be gathered, whoever supplies it: every rank takes part in that.
        gathered = {name: self._holds[name].read() for name in self._read_all[fragment].gathered}
        parts = places.parts(gathered)
        if parts:
            torch._foreach_copy_(places.within(torch.from_numpy(flat), parts), parts, non_blocking=non_blocking)

    @torch.no_grad()
    def write(self, fragment: int, flat: NDArray[np.float32], *, non_blocking: bool = False) -> None:
        """The parameters of the fragment ← flat, in place, rounded to their own dtype."""
        places, whole = self._written[fragment], torch.from_numpy(flat)
        parts = places.parts()
        if parts:
            torch._foreach_copy_(parts, places.within(whole, parts), non_blocking=non_blocking)
        if self._read_all[fragment].gathered:
            for piece in filter(self._gathers, self._local[fragment].pieces):
                self._holds[piece.name].write_rows(piece.start, whole[piece.offset : piece.offset + piece.numel])

    @torch.no_grad()
    def round(self, fragment: int, flat: NDArray[np.float32]) -> None:
        """flat ← what a parameter holds once flat has been written to it. Nothing to do for float32.

        A base has to be rounded like this, or the rounding itself would be offered as an outer gradient.
        """
        whole = torch.from_numpy(flat)
        for piece in self._rounded[fragment]:
            place = whole[piece.offset : piece.offset + piece.numel]
            place.copy_(place.to(self._parameters[piece.name].dtype))

    def views(
        self, tensors: Mapping[str, Tensor], fragment: int, flat: NDArray[np.float32]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Views of equal shapes: the tensors or rows, of those given, that make up a fragment, and their places in its
        ``flat`` vector. The tensors are as this rank holds them."""
        spec = self._local[fragment]
        assert flat.shape == (spec.numel,)
        whole = torch.from_numpy(flat)
        parts, places = [], []
        for piece in spec.pieces:
            if piece.name in tensors:
                tensor = tensors[piece.name]
                part = self._holds[piece.name].rows(tensor.detach() if tensor.requires_grad else tensor, piece)
                parts.append(part)
                places.append(whole[piece.offset : piece.offset + piece.numel].view(part.shape))
        return parts, places

    @torch.no_grad()
    def pack(self, tensors: Mapping[str, Tensor], fragment: int, flat: NDArray[np.float32]) -> None:
        """flat ← the fragment of these tensors, which are as this rank holds them."""
        parts, places = self.views(tensors, fragment, flat)
        if places:
            torch._foreach_copy_(places, parts)

    @torch.no_grad()
    def unpack(self, tensors: Mapping[str, Tensor], fragment: int, flat: NDArray[np.float32]) -> None:
        """The fragment of these tensors ← flat."""
        parts, places = self.views(tensors, fragment, flat)
        if places:
            torch._foreach_copy_(parts, places)

    def empty_bases(self) -> dict[str, Tensor]:
        """Zeros in the shape in which this rank holds each parameter, float32, in host memory."""
        return {name: torch.zeros(here.shape, dtype=torch.float32) for name, here in self._holds.items()}

    def to_global(self, bases: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Distributed tensors, placed as the parameters are, of what this rank holds; plain ones stay as they are."""
        return {name: self._holds[name].to_global(base) for name, base in bases.items()}

    def to_local(self, bases: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this rank holds of these. Collective if some have to be gathered for it."""
        return {name: self._holds[name].to_local(base) for name, base in bases.items()}

    def hold_of(self, name: str, tensor: Tensor) -> Hold | None:
        """How this rank holds a tensor that is placed as the parameter ``name`` is; None if it is another kind."""
        here = self._holds.get(name)
        if here is None or tuple(tensor.shape) != tuple(here.parameter.shape):
            return None
        parameter = here.parameter.detach()
        if not is_distributed(parameter) or not is_distributed(tensor):
            return here if is_distributed(parameter) == is_distributed(tensor) else None
        same = tensor.device_mesh == parameter.device_mesh and tensor.placements == parameter.placements  # type: ignore[attr-defined]
        return here if same else None

    def hold_named(self, name: str, shape: tuple[int, ...]) -> Hold | None:
        """The same, of one that would be made of such a shape: if the parameter is distributed, it is too."""
        here = self._holds.get(name)
        return here if here is not None and tuple(here.parameter.shape) == shape else None

    def is_spread(self, name: str) -> bool:
        """The parameter is distributed."""
        here = self._holds.get(name)
        return here is not None and is_distributed(here.parameter.detach())

    def supplied(self, name: str) -> Runs:
        """The elements of a parameter that this rank supplies, when what all ranks hold is put together."""
        if self._supplies is None:
            return self._holds[name].runs
        return self._supplies.get(name, Runs())

    def _in_place(self, spec: FragmentSpec) -> FragmentSpec:
        return replace(spec, pieces=tuple(piece for piece in spec.pieces if not self._gathers(piece)))

    def _gathers(self, piece: Piece) -> bool:
        return self._holds[piece.name].gathers


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
    if is_lazy(parameter):
        raise LayoutError("has no shape yet", where=where, fix="call the model once before attaching")
    if parameter.layout is not torch.strided:
        raise LayoutError(f"its layout is {parameter.layout}", where=where, fix="make it dense (to_dense())")
    if parameter.is_meta:
        raise LayoutError("is on the meta device, without values", where=where, fix="materialise the model first")
    if parameter.is_neg():
        raise LayoutError("is a negated view", where=where, fix="use its values (resolve_neg())")
    if type(parameter.data) is not Tensor and not is_distributed(parameter.data):
        raise LayoutError(
            f"is a {type(parameter.data).__name__}, neither a plain tensor nor a DTensor",
            where=where,
            fix="shard the model with fully_shard or parallelize_module",
        )


def _check_apart(parameters: Mapping[str, nn.Parameter]) -> None:
    """No element is in two places of the layout. Blocks of distributed parameters are torch's own."""
    plain = {name: p.detach() for name, p in parameters.items() if not is_distributed(p.detach())}
    shared = shared_elements(plain)
    if shared is not None and shared[0] == shared[1]:
        raise LayoutError(
            "its elements share memory (expand(), as_strided())",
            where=f"parameter {shared[0]!r}",
            fix="make it contiguous first",
        )
    if shared is not None:
        raise LayoutError(
            f"shares memory with {shared[0]!r}, but is another parameter: it would be merged twice",
            where=f"parameter {shared[1]!r}",
            fix="tie them (b.weight = a.weight, one Parameter under both names), or clone one",
        )


def _is_text(name: str) -> bool:
    """It has a form in UTF-8; half a surrogate pair has none."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
