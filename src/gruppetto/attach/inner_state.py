"""The state of an inner optimizer and a model's buffers, by name: so that another process can use them.

An optimizer numbers its parameters; two processes that build the same model may number them differently. Here every
piece of state is known by the name of its parameter and by its own (``exp_avg``, ``step``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gruppetto.attach.expected_state import CODES, Kind, check_keys, check_kind, check_values, rehearse
from gruppetto.attach.optimizers import each
from gruppetto.attach.sharding import plain_name
from gruppetto.errors import StateError

__all__ = [
    "InnerState",
    "check_buffer_kinds",
    "check_buffers",
    "check_optimizer",
    "gather",
    "kind_of",
    "put_buffers",
    "put_optimizer",
    "undoing",
]

_WHERE = "inner state"
_FLAGS = ("amsgrad", "centered")
"""Settings on which it depends what kinds of state there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerState:
    """``tensors`` and ``numbers`` by (parameter, kind of state); ``buffers`` by name. Not copied."""

    kind: str
    tensors: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    numbers: dict[tuple[str, str], int | float | bool | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """What the state of an optimizer can be used by.

    >>> kind_of(torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9))
    'torch.optim.sgd.SGD momentum'
    """
    return " + ".join(_kind_of_one(one) for one in each(optimizer))


def _kind_of_one(optimizer: torch.optim.Optimizer) -> str:
    group = optimizer.param_groups[0]
    said = [flag for flag in _FLAGS if group.get(flag)]
    if isinstance(group.get("momentum"), int | float) and group["momentum"]:
        said.append("momentum")
    return " ".join([f"{type(optimizer).__module__}.{type(optimizer).__qualname__}", *said])


def gather(model: nn.Module, optimizer: torch.optim.Optimizer) -> InnerState:
    """All of it, as it is now; the tensors are those in use, not copies.

    Raises :class:`StateError` for an optimizer whose state cannot be told by name.
    """
    found = InnerState(kind=kind_of(optimizer), buffers=dict(_buffers(model)))
    for name, _, held in _held(model, optimizer):
        for key, value in held.items():
            if isinstance(value, Tensor):
                found.tensors[name, str(key)] = value.detach()
            elif value is None or isinstance(value, bool | int | float):
                found.numbers[name, str(key)] = value
            else:
                raise StateError(
                    f"{type(optimizer).__name__} keeps a {type(value).__name__} as {key!r}, which has no plain form",
                    where=_WHERE,
                    fix="use donate=None and checkpoints=None with this optimizer",
                )
    return found


def put_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, state: InnerState) -> None:
    """Go on with this state; copies it. Learning rate and all other settings stay those of ``optimizer``.

    Raises :class:`StateError`, before anything has changed, if it belongs to another kind of optimizer or does not fit.
    """
    pieces = [*state.tensors.items(), *state.numbers.items()]
    check_optimizer(model, optimizer, state.kind, [(name, key, Kind.of(value)) for (name, key), value in pieces])
    by_name: dict[str, dict[str, Any]] = {}
    for (name, key), value in pieces:
        check_values(name, key, value)
        by_name.setdefault(name, {})[key] = value.clone() if isinstance(value, Tensor) else value
    for one in each(optimizer):
        _put_one(one, dict(_named(model, one)), by_name)


def _put_one(
    optimizer: torch.optim.Optimizer, parameters: dict[str, Tensor], by_name: dict[str, dict[str, Any]]
) -> None:
    """``parameters``: those of this optimizer, in the order of its groups."""
    mine = optimizer.state_dict()
    order = [index for group in mine["param_groups"] for index in group["params"]]
    places = dict(zip(parameters, order, strict=True))
    mine["state"] = {places[name]: by_name[name] for name in parameters if name in by_name}
    try:
        optimizer.load_state_dict(mine)
    except Exception as wrong:  # of many kinds; it looks at everything before it puts anything in
        raise StateError(f"the optimizer does not take it ({type(wrong).__name__}: {wrong})", where=_WHERE) from wrong
    for name, parameter in parameters.items():
        for key, value in by_name.get(name, {}).items():
            # It makes everything the dtype of the parameter; the codes of a quantised moment are no such numbers.
            if isinstance(value, Tensor) and value.dtype in CODES:
                optimizer.state[parameter][key] = value.to(parameter.device)


def check_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, kind: str, pieces: Iterable[tuple[str, str, Kind]]
) -> None:
    """Whether state of these names, keys, shapes and dtypes is what ``optimizer`` goes on with; no values needed.

    Raises :class:`StateError`.
    """
    if kind != kind_of(optimizer):
        raise StateError(f"it is that of {kind}, not of {kind_of(optimizer)}", where=_WHERE)
    families = [(n, p.ndim) for n, group in enumerate(optimizer.param_groups) for p in group["params"]]
    held = list(_held(model, optimizer))
    rehearsed = [kinds for one in each(optimizer) for kinds in rehearse(one)]
    expected = {name: kinds for (name, _, _), kinds in zip(held, rehearsed, strict=True)}
    parameters, keys = {name: parameter for name, parameter, _ in held}, dict[str, list[str]]()
    for name, key, piece in pieces:
        if name not in parameters:
            raise StateError(f"it has a {key} for {name!r}, which the optimizer does not train", where=_WHERE)
        check_kind(name, key, piece, parameters[name], expected[name])
        keys.setdefault(name, []).append(key)
    check_keys(
        keys,
        [
            (name, family, expected[name], not expected[name] and bool(state))
            for (name, _, state), family in zip(held, families, strict=True)
        ],
    )


def check_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Raises :class:`StateError` if they are not those of the model."""
    check_buffer_kinds(model, {name: (tuple(values.shape), values.dtype) for name, values in buffers.items()})
    own = dict(_buffers(model))
    for name, values in buffers.items():
        if bool((~torch.isfinite(values) & torch.isfinite(own[name]).cpu()).any()):
            raise StateError(f"its buffer {name!r} holds NaN or infinity where this model has none", where=_WHERE)


def check_buffer_kinds(model: nn.Module, kinds: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
    """The same for their shapes and dtypes alone."""
    own = dict(_buffers(model))
    for name, (shape, dtype) in kinds.items():
        if name not in own or (tuple(own[name].shape), own[name].dtype) != (shape, dtype):
            raise StateError(f"its buffer {name!r} {shape} {dtype} is none of this model", where=_WHERE)
    if own.keys() - kinds.keys():
        raise StateError(f"it lacks the buffer {min(own.keys() - kinds.keys())!r}", where=_WHERE)


@torch.no_grad()
def put_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Overwrite the model's buffers. Raises :class:`StateError`, before anything has changed, if they do not fit."""
    check_buffers(model, buffers)
    own = dict(_buffers(model))
    for name, values in buffers.items():
        own[name].copy_(values)


def undoing(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """What puts optimizer and buffers back as they are now, whatever has been put in meanwhile."""
    before = [(one, one.state) for one in each(optimizer)]  # another takes its place when something is loaded
    buffers = {name: buffer.detach().clone() for name, buffer in _buffers(model)}

    @torch.no_grad()
    def undo() -> None:
        for one, state in before:
            one.state = state
        for name, buffer in _buffers(model):
            buffer.copy_(buffers[name])

    return undo


def _named(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The optimizer's parameters with their names, in the order of its groups."""
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise StateError("the optimizer trains a tensor that is no parameter of the model", where=_WHERE)
            yield names[id(parameter)], parameter


def _held(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """The same for all optimizers in it, each parameter with its state, which is empty before its first step."""
    for one in each(optimizer):
        for name, parameter in _named(model, one):
            yield name, parameter, one.state.get(parameter, {})


def _buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Those that belong to the model's state: a table that can be computed again is left out."""
    kept = set(model.state_dict(keep_vars=True))
    for name, buffer in model.named_buffers():
        if name in kept:
            yield plain_name(name), buffer
