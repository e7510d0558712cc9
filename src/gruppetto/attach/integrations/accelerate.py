"""Accelerate: a learner around what ``prepare`` gave, and in what ``save_state`` writes.

::

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with attach(accelerator, model, optimizer, syncer="http://127.0.0.1:7171", tokens_per_step=8192) as learner:
        for batch in learner.until_finished(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()

A plain :class:`gruppetto.Learner` takes a prepared model and optimizer too, and has no part in checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from gruppetto.attach.checkpoints import Checkpoints, is_checkpoint
from gruppetto.attach.learner import Learner
from gruppetto.attach.optimizers import Optimizers
from gruppetto.attach.part import put_together, read_files, take_apart, write_files
from gruppetto.errors import StateError

__all__ = ["attach"]

PLACE = "gruppetto"
"""The directory of a checkpoint in which the learner's own part lies."""


def attach(accelerator: Accelerator, model: nn.Module, optimizer: Optimizers, **settings: Any) -> Learner:
    """A learner with these settings, to be entered; ``accelerator.save_state`` and ``load_state`` know it from now on.

    Load before the ``with`` block. Raises what :class:`gruppetto.Learner` raises; ``load_state`` raises
    :class:`StateError` for a learner's part that is damaged or of another model. A checkpoint without one is loaded as
    it is: the learner then takes the run's weights. Of several processes (DDP, FSDP2), which are one learner, all save
    and load, in a directory that all of them see.
    """
    learner = Learner(model, optimizer, **settings)

    def save(models: list[nn.Module], weights: list[dict[str, Tensor]], directory: str) -> None:
        if learner.ranks is not None:
            Checkpoints(directory).save_own(Path(directory) / PLACE, learner)
            return
        tensors: dict[str, Tensor] = {}
        rest = take_apart(learner.state_dict(), "learner", tensors)
        write_files(Path(directory) / PLACE, tensors, {"learner": rest})

    def load(models: list[nn.Module], directory: str) -> None:
        if is_checkpoint(Path(directory) / PLACE):
            Checkpoints(directory).load_own(Path(directory) / PLACE, model, learner)
        elif (Path(directory) / PLACE).exists():
            if learner.ranks is not None:
                raise StateError("was written by one process", where=directory, fix="go on with one, or without it")
            tensors, rest = read_files(Path(directory) / PLACE)
            learner.load_state_dict(put_together(rest["learner"], tensors))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return learner
