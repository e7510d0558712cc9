"""A learner's own part of a checkpoint: one flat dictionary of tensors, whole numbers and text.

Together with the model's and the optimizer's it resumes a learner without pulling what has not changed meanwhile. The
keys depend on the model alone, so a distributed checkpoint can be loaded into the dictionary of a fresh learner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from gruppetto.attach.expected_state import check_values
from gruppetto.errors import StateError
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.learner import LearnerState
from gruppetto.protocol.units import NEVER, UNBORN, Epoch, Incarnation, Round, Version
from gruppetto.runtime.plausible import MAX_COUNT, is_name

__all__ = ["FORMAT", "from_state_dict", "rests_of", "to_state_dict"]

FORMAT = 1
BASE = "base."
"""Before the name of a parameter: its base, float32, in the parameter's shape."""
REST = "rest."
"""Before the name of a parameter: what encodings have left unsaid of it and is owed; of all, or of none."""

_WHERE = "Learner.load_state_dict"


def to_state_dict(
    state: LearnerState,
    *,
    layout_hash: str,
    cut_hash: str,
    bases: Mapping[str, Tensor],
    rests: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Everything that a learner has to remember."""
    counters = {field.name: getattr(state, field.name) for field in fields(state)}
    return {
        "format": FORMAT,
        "layout_hash": layout_hash,
        "cut_hash": cut_hash,
        "core": json.dumps(counters),
        **{BASE + name: base for name, base in bases.items()},
        **{REST + name: rest for name, rest in (rests or {}).items()},
    }


def rests_of(plain: Mapping[str, Any], layout: Layout) -> dict[str, Tensor]:
    """What is owed, by parameter name; nothing if there is none. Raises :class:`StateError`."""
    rests = {t.name: plain[REST + t.name] for t in layout.tensors if REST + t.name in plain}
    try:
        if rests:
            _check_like(rests, layout)
    except (KeyError, ValueError) as wrong:
        raise StateError(
            f"what it owes is incomplete or damaged ({wrong})",
            where=_WHERE,
            fix="load what Learner.state_dict gave, unchanged",
        ) from wrong
    return rests


def from_state_dict(plain: Mapping[str, Any], layout: Layout) -> tuple[LearnerState, str, dict[str, Tensor]]:
    """(what the core remembers, how the bases are cut, the bases by parameter name).

    Raises :class:`StateError` for the dictionary of another model, or none of ours.
    """
    if not isinstance(plain, Mapping):
        raise StateError(f"it is a {type(plain).__name__}", where=_WHERE, fix="load what Learner.state_dict gave")
    if plain.get("format") != FORMAT:
        raise StateError(
            f"format is {plain.get('format')!r}, expected {FORMAT}",
            where=_WHERE,
            fix="load what Learner.state_dict gave, with the same version",
        )
    if plain.get("layout_hash") != layout.layout_hash:
        raise StateError(
            "it belongs to a model of another layout", where=_WHERE, fix="build the model it was saved with"
        )
    try:
        bases = {tensor.name: plain[BASE + tensor.name] for tensor in layout.tensors}
        _check_like(bases, layout)
        counters = json.loads(plain["core"])
        state = LearnerState(
            run_id=str(counters["run_id"]),
            clock=int(counters["clock"]),
            newest_round=Round(int(counters["newest_round"])),
            fragments=tuple((Version(int(v)), int(steps), int(tokens)) for v, steps, tokens in counters["fragments"]),
            steps=int(counters["steps"]),
            tokens=int(counters["tokens"]),
            cursor=int(counters["cursor"]),
            session=str(counters.get("session", "")),
            incarnation=Incarnation(int(counters.get("incarnation", UNBORN))),
            slot=int(counters.get("slot", 0)),
            epoch=Epoch(int(counters.get("epoch", 0))),
        )
        _check_counts(state)
        return state, str(plain["cut_hash"]), bases
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as wrong:
        raise StateError(
            f"it is incomplete or damaged ({type(wrong).__name__}: {wrong})",
            where=_WHERE,
            fix="load what Learner.state_dict gave, unchanged",
        ) from wrong


def _check_like(tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Float32, in the shapes of the parameters, and of values that training brings about. Raises ValueError, KeyError
    or :class:`StateError`."""
    for spec in layout.tensors:
        tensor = tensors[spec.name]
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.dtype != torch.float32:
            raise ValueError(f"what belongs to {spec.name!r} is no float32 tensor with values")
        if tuple(tensor.shape) != spec.shape:
            raise ValueError(f"what belongs to {spec.name!r} has another shape than its parameter")
        check_values(spec.name, "base", tensor)


def _check_counts(state: LearnerState) -> None:
    """What the wire would not carry later is refused now. Raises ValueError."""
    counts = [state.clock, state.newest_round, state.steps, state.tokens, state.cursor, state.incarnation, state.slot]
    counts += [state.epoch]
    counts += [number for fragment in state.fragments for number in fragment[1:]]
    if not all(0 <= number <= MAX_COUNT for number in counts):
        raise ValueError("a count is negative or absurdly large")
    if not all(NEVER <= version <= MAX_COUNT for version, _, _ in state.fragments):
        raise ValueError("a version is out of range")
    if state.run_id and not is_name(state.run_id):
        raise ValueError("the run's name is none")
    if state.session and not is_name(state.session):
        raise ValueError("the session's name is none")
