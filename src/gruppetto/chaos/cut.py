"""A checkpoint of the whole world: the syncer's part, the learners' parts, and what was true at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gruppetto.chaos.gatekeeper import Gatekeeper
from gruppetto.chaos.record import Checkpoint
from gruppetto.chaos.truth import Content
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version

__all__ = ["Cut", "Part", "Truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One learner's part of a checkpoint. ``plan`` names who would be started again from it."""

    plan: str
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a :class:`~gruppetto.chaos.observers.Watch` knows at one moment, beside the weights themselves."""

    values: Mapping[tuple[Fragment, Version], int]
    newest: Mapping[LearnerId, Mapping[int, str]]
    gate: Gatekeeper
    """Of the life that makes the cut, as it was then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A checkpoint that counts."""

    mark: str
    state: SyncerState
    contents: tuple[Content, ...]
    """Θ, by fragment."""
    parts: Mapping[tuple[LearnerId, Incarnation], Part]
    truth: Truth
