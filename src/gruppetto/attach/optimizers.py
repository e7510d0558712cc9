"""What may stand where an optimizer is expected: a wrapper is looked through, and several become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gruppetto.errors import SettingError, StateError

__all__ = ["Optimizers", "Several", "as_one", "each"]

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""One optimizer, or several that share a model. The last of them ends a step."""

_WHERE = "Learner.optimizer"


class Several(torch.optim.Optimizer):
    """Optimizers of one model (Muon for its matrices, AdamW for the rest) as one: groups and state of all of them.

    A step of the loop is done when the last of them has stepped. It never steps itself. Raises :class:`SettingError`
    if a parameter has two of them.

    >>> first, second = torch.zeros(1, requires_grad=True), torch.zeros(2, requires_grad=True)
    >>> both = Several([torch.optim.SGD([first], lr=1.0), torch.optim.AdamW([second], lr=2.0)])
    >>> [group["lr"] for group in both.param_groups]
    [1.0, 2.0]
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = tuple(optimizers)  # the base class would make a state of its own
        held = [id(parameter) for group in self.param_groups for parameter in group["params"]]
        if len(set(held)) < len(held):
            raise SettingError(
                "two of the optimizers train the same parameter", where=_WHERE, fix="give every parameter one optimizer"
            )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """A view of a moment; to read."""
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}

    def state_dict(self) -> dict[str, Any]:
        return {str(number): optimizer.state_dict() for number, optimizer in enumerate(self.optimizers)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raises :class:`StateError` for the state of another number of optimizers."""
        if set(state_dict) != {str(number) for number in range(len(self.optimizers))}:
            raise StateError(
                f"it is not the state of {len(self.optimizers)} optimizers", where=_WHERE, fix="build those it was of"
            )
        for number, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(state_dict[str(number)])


def each(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """The optimizers that step."""
    yield from optimizer.optimizers if isinstance(optimizer, Several) else (optimizer,)


def as_one(given: Optimizers) -> torch.optim.Optimizer:
    """The optimizer in which the state lies and whose hooks are called.

    Accelerate and Lightning wrap an optimizer and keep it as ``optimizer``; torchtitan's container keeps several as
    ``optimizers``, which step one after the other. Raises :class:`SettingError` for an empty list, and for what is no
    optimizer.
    """
    if isinstance(given, Several):
        return given
    inside = getattr(given, "optimizers", None)
    if isinstance(inside, Sequence) and inside and all(isinstance(one, torch.optim.Optimizer) for one in inside):
        given = inside
    if not isinstance(given, Sequence):
        return _innermost(given)
    if not given:
        raise SettingError("no optimizer in the list", where=_WHERE, fix="pass those that train the model")
    return Several([_innermost(one) for one in given]) if len(given) > 1 else _innermost(given[0])


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "state_dict") and hasattr(optimizer, "step")):
        raise SettingError(
            f"a {type(optimizer).__name__} is no optimizer",
            where=_WHERE,
            fix="pass the torch optimizer, or a list of those that train the model",
        )
    return optimizer
