"""A learner that begins and ends with somebody else's training loop."""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from gruppetto.attach.learner import Learner
from gruppetto.attach.optimizers import Optimizers, as_one, each
from gruppetto.errors import SettingError

__all__ = ["Ride", "Served", "check_one_process", "is_training"]

GIVEN_HERE = ("self", "model", "optimizer", "hook")
"""What a trainer has, and is not to be told."""


class Served(Protocol):
    """Data that is to know where its learner stands, and what it has used: :class:`gruppetto.data.Slots`."""

    def serve(self, learner: Learner | Callable[[], Learner], *, share: tuple[int, int] | None = None) -> object: ...
    def used(self, items: int) -> None: ...
    @property
    def moved(self) -> bool: ...


class Ride:
    """Makes a :class:`gruppetto.Learner` when training begins and closes it when that ends; again and again if need be.

    ``settings`` are the learner's own, by name. Raises :class:`SettingError` for a name that is none of them.
    """

    def __init__(self, settings: Mapping[str, Any], *, where: str) -> None:
        known = [name for name in inspect.signature(Learner.__init__).parameters if name not in GIVEN_HERE]
        for name in settings:
            if name not in known:
                raise SettingError(
                    f"{name} is no setting of a learner", where=where, fix=f"use one of {', '.join(known)}"
                )
        if "syncer" not in settings:
            raise SettingError("no syncer is named", where=where, fix='give its address: syncer="http://HOST:7171"')
        self._settings = dict(settings)
        self._learner: Learner | None = None
        self._counting: Any = None

    @property
    def learner(self) -> Learner | None:
        """While training goes on."""
        return self._learner

    @property
    def over(self) -> bool:
        """The run has ended, or this learner has left it: what is trained now is for nobody."""
        return self._learner is not None and (self._learner.finished or self._learner.left)

    @property
    def counts_tokens(self) -> bool:
        """Nobody has said how many tokens a step uses."""
        return "tokens_per_step" not in self._settings

    @property
    def size(self) -> int:
        """Ranks of the learner: of all together are the tokens that rank 0 tells."""
        ranks = None if self._learner is None else self._learner.ranks
        return 1 if ranks is None else ranks.size

    def begin(self, model: nn.Module, optimizer: Optimizers, *, used: Callable[[], int]) -> Learner:
        """Enter the run: waits until its weights are in ``model``. Raises what :class:`gruppetto.Learner` raises.

        ``used`` is asked for the tokens of every step that is made, just before it, and of no other. An optimizer that
        has been restored from a checkpoint of the trainer is kept; a fresh one takes what a peer gives. A training of
        many processes is one learner of as many ranks, all of which come here.
        """
        self.abandon()
        inner = as_one(optimizer)
        learner = Learner(model, inner, **{"recover": not inner.state, **self._settings})
        learner.__enter__()
        self._learner = learner
        atexit.register(learner.close)  # a training that ends with an exception tells no callback

        def count(*_: object) -> None:
            tokens = used()
            if self.counts_tokens:
                learner.tokens(tokens)

        self._counting = list(each(inner))[-1].register_step_pre_hook(count)
        return learner

    def end(self) -> None:
        """Leave. A finished run's last weights are in the model then; of another one all work is given that can be."""
        learner = self._learner
        if learner is not None and not (learner.finished or learner.left):
            learner.leave()
        self.abandon()

    def abandon(self, failure: BaseException | None = None) -> None:
        """Close whatever is open; harmless when nothing is. ``failure``: what has ended the training."""
        learner, self._learner = self._learner, None
        if self._counting is not None:
            self._counting.remove()
            self._counting = None
        if learner is not None:
            atexit.unregister(learner.close)
            learner.__exit__(None if failure is None else type(failure), failure, None)


def check_one_process(what: str, fix: str) -> None:
    """Raises :class:`SettingError` where the processes of a training are ranks of one learner."""
    begun = torch.distributed.is_available() and torch.distributed.is_initialized()
    if begun and torch.distributed.get_world_size() > 1:
        size = torch.distributed.get_world_size()
        raise SettingError(f"this training has {size} processes", where=what, fix=fix)


def is_training(module: nn.Module) -> bool:
    """A forward pass of ``module`` would be one to be trained on."""
    return module.training and torch.is_grad_enabled()
