"""A learner's own checkpoints: model, optimizer and learner, written while training goes on.

::

    DIRECTORY/round-0000000400/  model-00001-of-00001.safetensors  model.safetensors.index.json  learner.json

Tensors are written by ``torch.distributed.checkpoint`` in Hugging Face's safetensors form; its ordinary file form
pickles its index, and nothing here is ever unpickled. What is no tensor stands in ``learner.json`` beside them, with
the size and digest of every file. How they are written is in :mod:`gruppetto.attach.writing`.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gruppetto.attach.checkpoint import from_state_dict
from gruppetto.attach.inner_state import InnerState, check_buffers, gather, put_buffers, put_optimizer
from gruppetto.attach.on_disk import (
    FORMAT,
    Facts,
    age_of,
    check_files,
    facts_of,
    is_checkpoint,
    names_in,
    read_tensors,
)
from gruppetto.attach.optimizers import Optimizers, as_one
from gruppetto.attach.sharding import plain_name
from gruppetto.attach.writing import Taken, Writer
from gruppetto.errors import SettingError, StateError
from gruppetto.home import at_home
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.learner import LearnerState
from gruppetto.runtime.plausible import is_name

if TYPE_CHECKING:
    from gruppetto.attach.learner import Learner

__all__ = ["Checkpoints", "is_checkpoint"]

log = logging.getLogger("gruppetto.learner")

OWN = "learner."
"""Before the names of the learner's own tensors."""
BESIDE = "extra."
"""Before the names of tensors that are nobody's state."""
OwnState = tuple[LearnerState, str, dict[str, Tensor]]
"""What :func:`gruppetto.attach.checkpoint.from_state_dict` gives."""
_BY_ROUND = re.compile(r"round-(\d{10})")


class Checkpoints:
    """The checkpoints of one learner in ``directory``; the newest ``keep`` are kept.

    ``every_steps``: a learner to which this is given saves by itself, so often; None: only when :meth:`save` is called.
    A checkpoint that is damaged, or of something else, is passed over with a line in the log.
    """

    def __init__(self, directory: str | Path, *, every_steps: int | None = None, keep: int = 2) -> None:
        for name, value in (("every_steps", every_steps), ("keep", keep)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SettingError(f"{name} is {value!r}", where=f"Checkpoints.{name}", fix="use 1 or more")
        self.directory, self.every_steps, self.keep = at_home(directory), every_steps, keep
        self._writer = Writer()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            raise StateError(
                f"cannot be made ({wrong.strerror})", where=str(directory), fix="name another directory"
            ) from wrong

    def is_due(self, steps: int) -> bool:
        """After so many steps of this process one is to be saved."""
        return self.every_steps is not None and steps > 0 and steps % self.every_steps == 0

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        learner: Learner,
        extra: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> bool:
        """Save what is now, between two steps. Returns when it is copied; False if the last one is still being written.

        ``extra`` comes back from :meth:`load`; plain JSON. A checkpoint with a ``name`` of its own is never pruned.
        What goes wrong with the disk is said in the log: training goes on. All ranks of a learner call it together, and
        see one directory; ``extra`` and buffers are those of rank 0.
        """
        if name is not None and (not is_name(name) or _BY_ROUND.fullmatch(name)):
            raise SettingError(f"name is {name!r}", where="Checkpoints.save", fix="use letters, digits or . _ -")
        wanted = "" if self._writer.busy else name or self._next_name(learner)
        wanted = learner.agree(wanted)  # as rank 0 says
        if not wanted:
            return False
        self.wait()
        self._writer.begin(self.directory / wanted, self._taken(model, optimizer, learner, extra), then=self._prune)
        return True

    def save_at(
        self,
        place: Path,
        model: nn.Module,
        optimizer: Optimizers,
        learner: Learner,
        *,
        extra: Mapping[str, Any],
        beside: Mapping[str, Tensor],
    ) -> Future[str]:
        """Save what is now at a place that all ranks have been told; where it is, once all of it is durable, or at the
        other ranks their own part. ``beside``: tensors whose names begin with "extra.". Waits for the one before."""
        self.wait()
        return self._writer.begin(place, self._taken(model, optimizer, learner, extra, beside))

    def _taken(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        learner: Learner,
        extra: Mapping[str, Any] | None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> Taken:
        """Everything of this moment, copied."""
        state, own = gather(model, as_one(optimizer)), learner.state_dict()
        tensors = _keyed(model, state) | {f"{OWN}{key}": v for key, v in own.items() if isinstance(v, Tensor)}
        tensors |= beside or {}
        facts = Facts(
            format=FORMAT,
            optimizer=state.kind,
            numbers=[(parameter, key, value) for (parameter, key), value in state.numbers.items()],
            learner={key: value for key, value in own.items() if not isinstance(value, Tensor)},
            tensors={key: (str(t.dtype), list(t.shape)) for key, t in tensors.items()},
            files={},
            extra=json.loads(json.dumps(dict(extra or {}))),
        )
        return self._writer.copied(tensors, facts, learner)

    def wait(self) -> None:
        """Until what was saved is on the disk."""
        self._writer.wait()

    def _next_name(self, learner: Learner) -> str:
        """In order over all lives: rounds go on where a process counts its steps from zero again."""
        taken = [int(found[1]) for found in map(_BY_ROUND.fullmatch, names_in(self.directory)) if found]
        return f"round-{max([*(n + 1 for n in taken), learner.round]):010d}"

    def _prune(self) -> None:
        rounds = sorted(name for name in names_in(self.directory) if _BY_ROUND.fullmatch(name))
        for name in rounds[: -self.keep]:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def save_own(self, place: Path, learner: Learner) -> None:
        """The learner alone, at a place that all its ranks have been told: for others' checkpoints, in which model and
        optimizer are. All ranks call it; it is durable when it returns. Raises :class:`StateError`."""
        own = learner.state_dict()
        tensors = {f"{OWN}{key}": value for key, value in own.items() if isinstance(value, Tensor)}
        written = self._writer.begin(place, self._writer.copied(tensors, Facts.of_learner(own, tensors), learner))
        wrong = written.exception()
        told = learner.agree(f"could not be written ({wrong})" if wrong is not None else "")  # rank 0 writes last
        if told or wrong is not None:
            raise StateError(told or str(wrong), where=str(place)) from wrong

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def any(self) -> bool:
        """There may be something to load."""
        return bool(self._by_age())

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole; None if there is none."""
        for path in self._by_age():
            try:
                check_files(path, facts_of(path))
                return path
            except StateError as wrong:
                log.warning("%s; passed over", wrong)
        return None

    def recover(
        self, run_id: str, layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[OwnState, Path]:
        """Take optimizer and buffers from the newest checkpoint that can be used in this run; its parameters stay out.
        What the learner itself was, and which one it is.

        Raises :class:`StateError` if there is none.
        """
        for path in self._by_age():
            try:
                check_files(path, facts_of(path))
                return self.recover_from(path, run_id, layout, model, optimizer), path
            except StateError as wrong:
                log.warning("%s; passed over", wrong)
            except Exception as wrong:  # of whatever kind, damage is no reason to end
                log.warning("%s cannot be used (%s: %s); passed over", path, type(wrong).__name__, wrong)
        raise StateError("no checkpoint can be used", where=str(self.directory))

    def recover_from(
        self, path: Path, run_id: str, layout: Layout, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> OwnState:
        """The same of a certain one, whose files are as they were written. Raises :class:`StateError`, before anything
        has changed."""
        facts = facts_of(path)
        tensors = read_tensors(path, facts, model)
        own = {key.removeprefix(OWN): tensors.pop(key) for key in list(tensors) if _is_own(key)}
        found = from_state_dict({**facts.learner, **own}, layout)
        if found[0].run_id != run_id:
            raise StateError(f"belongs to run {found[0].run_id}, this is {run_id}", where=str(path))
        state, _ = _unkeyed({key: t for key, t in tensors.items() if not key.startswith(BESIDE)}, facts)
        check_buffers(model, state.buffers)
        put_optimizer(model, optimizer, state)
        put_buffers(model, state.buffers)
        return found

    def _by_age(self) -> list[Path]:
        """The newest first."""
        return sorted((self.directory / name for name in names_in(self.directory)), key=age_of, reverse=True)

    def load(
        self,
        path: Path,
        model: nn.Module,
        optimizer: Optimizers,
        learner: Learner | None,
    ) -> dict[str, Any]:
        """Take everything up where :meth:`save` was called, before the ``with`` block; returns its ``extra``.

        ``learner`` None: its own part is left out. With any number of ranks, each of which calls it. Raises
        :class:`StateError` for a checkpoint that is damaged or does not fit; the model is then as it was, if it was not
        for something that only shows when it is put in.
        """
        return self.load_all(path, model, optimizer, learner)[0]

    def load_own(self, path: Path, model: nn.Module, learner: Learner) -> None:
        """Take up what :meth:`save_own` has saved. Raises :class:`StateError`."""
        facts = facts_of(path)
        check_files(path, facts)
        tensors = read_tensors(path, facts, model)
        learner.load_state_dict(facts.learner | {key.removeprefix(OWN): value for key, value in tensors.items()})

    def load_all(
        self,
        path: Path,
        model: nn.Module,
        optimizer: Optimizers,
        learner: Learner | None,
        *,
        same_life: bool = False,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The same, with the tensors that were saved beside ``extra``; ``same_life``: as in
        :meth:`gruppetto.Learner.load_state_dict`."""
        facts = facts_of(path)
        check_files(path, facts)
        tensors = read_tensors(path, facts, model)
        own = {key.removeprefix(OWN): tensors.pop(key) for key in list(tensors) if _is_own(key)}
        beside = {key: tensors.pop(key) for key in list(tensors) if key.startswith(BESIDE)}
        state, parameters = _unkeyed(tensors, facts)
        _check_model(model, parameters, path)
        if learner is not None:
            learner.load_state_dict({**facts.learner, **own}, same_life=same_life)
        put_optimizer(model, as_one(optimizer), state)
        put_buffers(model, state.buffers)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(parameters[plain_name(name)])  # distributed alike, or plain both
        return facts.extra, beside


def _keyed(model: nn.Module, state: InnerState) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {f"model.{plain_name(name)}": parameter for name, parameter in model.named_parameters()}
    found |= {f"buffer.{name}": buffer for name, buffer in state.buffers.items()}
    found |= {f"optimizer.{key}:{name}": tensor for (name, key), tensor in state.tensors.items()}
    return found


def _unkeyed(tensors: Mapping[str, Tensor], facts: Facts) -> tuple[InnerState, dict[str, Tensor]]:
    state = InnerState(kind=facts.optimizer, numbers={(name, key): value for name, key, value in facts.numbers})
    parameters: dict[str, Tensor] = {}
    for full, tensor in tensors.items():
        part, _, rest = full.partition(".")
        if part == "model":
            parameters[rest] = tensor
        elif part == "buffer":
            state.buffers[rest] = tensor
        else:
            key, _, name = rest.partition(":")
            state.tensors[name, key] = tensor
    return state, parameters


def _is_own(key: str) -> bool:
    return key.startswith(OWN)


def _check_model(model: nn.Module, parameters: Mapping[str, Tensor], path: Path) -> None:
    mine = {plain_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
    theirs = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    if mine != theirs:
        wrong = sorted(mine.items() ^ theirs.items())[0][0]
        raise StateError(
            f"is of another model ({wrong!r} differs)", where=str(path), fix="build the model it was saved with"
        )
