"""What can happen to a core, besides the messages of the other side.

Everything slow is an action with a completion event, so that a simulator can price it and a fuzzer can lose it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Ask,
    Begin,
    Deferred,
    Goodbye,
    Heartbeat,
    Hello,
    Progress,
    Refusal,
    Rejection,
    Welcome,
)
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Round, Version

__all__ = [
    "Arrived",
    "Boundary",
    "Folded",
    "LearnerEvent",
    "LinkDown",
    "LinkLost",
    "OuterStepped",
    "PersistFailed",
    "Persisted",
    "Published",
    "Seeded",
    "Settle",
    "StepDone",
    "StepStarted",
    "SyncerEvent",
    "Tick",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. A spurious one does nothing."""


# ── to the syncer ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLost:
    """The control connection of a learner has closed. It may come back."""

    learner: LearnerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeded:
    """The initial weights have all arrived from ``learner`` and are finite."""

    learner: LearnerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Completes :class:`~gruppetto.protocol.actions.Fold`."""

    round: Round
    fragment: Fragment
    learner: LearnerId


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterStepped:
    """Completes :class:`~gruppetto.protocol.actions.TakeOuterStep`."""

    round: Round
    zero: tuple[Fragment, ...] = ()
    """Fragments whose merged update was zero everywhere."""
    not_finite: tuple[Fragment, ...] = ()
    """Fragments whose new value is not finite. The shell has kept their old value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """Completes :class:`~gruppetto.protocol.actions.Persist`: the state survives kill −9 and power loss."""

    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistFailed:
    """A :class:`~gruppetto.protocol.actions.Persist` did not reach the disk. Nothing was published; it is tried
    again."""

    round: Round
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Completes :class:`~gruppetto.protocol.actions.Publish`: handed to the connections of all learners."""

    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The finished run is being put away: whoever has not said goodbye will not do so any more."""


# ── to a learner ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown:
    """The control connection to the syncer has closed. Training goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A pulled global fragment is in host memory, checked, ready to be applied."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """An inner step begins. The clock is stamped now; said again before it is done, the stamp is renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """An inner step is done; the parameters may be read and written until the next one starts."""

    tokens: int
    cursor: int
    """The next batch of the data slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The parameters may be read and written now, though no step was made (before training, while waiting)."""


SyncerEvent = (
    Hello
    | Progress
    | Answer
    | Deferred
    | Heartbeat
    | Goodbye
    | LinkLost
    | Seeded
    | Folded
    | OuterStepped
    | Persisted
    | PersistFailed
    | Published
    | Settle
    | Tick
)
LearnerEvent = (
    Welcome | Refusal | Begin | Ask | Rejection | Announcement | LinkDown | Arrived | StepStarted | StepDone | Boundary
)
