"""Where the learner looks into a training loop that knows nothing of it: at a forward pass, before and after a step.

A step that the AMP scaler skips never reaches ``optimizer.step`` and so is no step; gradient accumulation counts one
step for all its backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gruppetto.attach.optimizers import each
from gruppetto.errors import SettingError

__all__ = ["StepHooks", "check_free"]


def check_free(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Raises :class:`SettingError` if a learner looks into one of them already: two would take each other's writes for
    what was trained."""
    stepping = [] if optimizer is None else list(each(optimizer))
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    hooks += [hook for one in stepping for hook in getattr(one, "_optimizer_step_post_hooks", {}).values()]
    if any(isinstance(getattr(hook, "__self__", hook), _ForwardHook | StepHooks) for hook in hooks):
        raise SettingError(
            "another learner is attached to it",
            where="Learner.model",
            fix="leave that one's with block before, or give each learner a model and an optimizer of its own",
        )


def _nothing(module: nn.Module, args: tuple[Any, ...]) -> None:
    """What a copy of an attached model has in place of the learner's hook: the learner is the original's alone."""


def _no_hook() -> Callable[..., None]:
    return _nothing


class _ForwardHook:
    """Is called before each forward pass. Copied or pickled, as with the model it is in, it becomes one that does
    nothing."""

    def __init__(self, forward: Callable[[bool], None]) -> None:
        self._forward = forward

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # Inside a compiled graph there is nothing to look at: the stamp of the last boundary then stays.
        if not torch.compiler.is_compiling():
            self._forward(module.training and torch.is_grad_enabled())

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _no_hook, ()


class StepHooks:
    """Calls back at each of these moments, until :meth:`remove`.

    ``forward(training)`` before each call of ``model``: is it a pass to be trained on, or an evaluation? ``before``
    and ``after`` around each ``optimizer.step()``; of several optimizers the last one's, ``before`` before each.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        forward: Callable[[bool], None],
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        self._before, self._after = before, after
        # Before the hooks of FSDP, which wait for other ranks: who hangs there has begun a step.
        self._handles: list[Any] = [model.register_forward_pre_hook(_ForwardHook(forward), prepend=True)]
        if optimizer is None:
            return
        without = [one for one in each(optimizer) if not hasattr(one, "register_step_post_hook")]
        if without:
            raise SettingError(
                f"{type(without[0]).__name__} has no step hooks",
                where="Learner.optimizer",
                fix="pass the torch optimizer inside it, or hook=False and call learner.step() after each step",
            )
        stepping = list(each(optimizer))
        self._handles += [one.register_step_pre_hook(self._on_before) for one in stepping]
        self._handles.append(stepping[-1].register_step_post_hook(self._on_after))

    def remove(self) -> None:
        """Leave model and optimizer as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._before()

    def _on_after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._after()
