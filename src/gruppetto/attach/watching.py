"""Parameters that begin or cease to be trained while a run goes on: said in one line, because nothing else shows it.

What takes part is settled when the model is attached: the run is made of those tensors, in every learner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch
from torch import nn

from gruppetto.attach.sharding import plain_name

__all__ = ["Glance", "Watch", "say_if_untrained"]

log = logging.getLogger("gruppetto.learner")

NAMED = 3
"""Names in one line; a model has thousands."""


class Watch:
    """Looks at which parameters of ``model`` are trained; ``taking_part`` are the names of those the run is made of."""

    def __init__(self, model: nn.Module, taking_part: Iterable[str], *, learner: str) -> None:
        self._model, self._taking_part, self._learner = model, frozenset(taking_part), learner
        self._trained = self._look()

    def look(self) -> None:
        """Say what has changed since the last look."""
        trained, before = self._look(), self._trained
        self._trained = trained
        frozen, thawed = before - trained, trained - before
        if quiet := sorted(frozen & self._taking_part):
            log.warning(
                "%s: %s: frozen since the model was attached; in the run all the same, and offers no change of it",
                self._learner,
                _names(quiet),
            )
        if alone := sorted(thawed - self._taking_part):
            log.warning(
                "%s: %s: trained since the model was attached, but no part of the run; begin a run with it unfrozen, "
                "or attach with trainable_only=False",
                self._learner,
                _names(alone),
            )

    def _look(self) -> frozenset[str]:
        return frozenset(plain_name(name) for name, p in self._model.named_parameters() if p.requires_grad)


class Glance:
    """Sees in a fraction of a microsecond a parameter whether there is anything to look at: a name, an object, a
    shape, a dtype or what is trained has changed."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen = self._now()

    def look(self, *closely: Callable[[], None]) -> None:
        """Call ``closely`` if the model is not as it was when they were last called; again, if one of them raises."""
        now = self._now()
        if now != self._seen:
            for each in closely:
                each()
            self._seen = now

    def _now(self) -> list[tuple[str, int, bool, torch.dtype, torch.Size]]:
        # Not modules(), whose generators lie as deep in each other as the model does.
        found, waiting, seen = [], [self._model], set()
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += [child for child in module._modules.values() if child is not None]
                found += [
                    (name, id(p), p.requires_grad, p.dtype, p.shape)
                    for name, p in module._parameters.items()
                    if p is not None
                ]
        return found


def say_if_untrained(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], *, learner: str) -> None:
    """In one line, if the optimizer holds none of these: it may keep copies of its own, or have been made too early."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held.isdisjoint(map(id, parameters)):
        log.warning(
            "%s: the optimizer has none of the model's parameters; if it does not keep copies of them on purpose, make "
            "it after the model has been moved, sharded and wrapped",
            learner,
        )


def _names(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(repr(name) for name in names[:NAMED]) + (f" and {more} more" if more > 0 else "")
