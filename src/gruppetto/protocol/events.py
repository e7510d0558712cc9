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
    Clipping,
    Deferred,
    Goodbye,
    Heartbeat,
    Hello,
    Marked,
    Marker,
    Progress,
    Refusal,
    Rejection,
    Welcome,
)
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = [
    "Arrived",
    "Boundary",
    "CheckpointRecorded",
    "Folded",
    "GoesOnElsewhere",
    "LearnerEvent",
    "Leaving",
    "LinkDown",
    "LinkLost",
    "LookedAround",
    "OuterStepped",
    "PersistFailed",
    "Persisted",
    "Published",
    "Recovered",
    "Seeded",
    "Settle",
    "StateSaved",
    "StepDone",
    "StepStarted",
    "Stop",
    "SyncerEvent",
    "TakeCheckpoint",
    "Taken",
    "Tick",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. A spurious one does nothing."""


# ── to the syncer ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAround:
    """What the shell sees beside the protocol, now and then. Alarms come of it, and nothing else."""

    free_bytes: int | None = None
    """On the disk of the state directory; None where that cannot be told."""
    wanted_bytes: int = 0
    """Room without which a commit may soon not fit."""
    skews_s: tuple[tuple[LearnerId, float], ...] = ()
    """By how much the wall clocks of learners are ahead of the syncer's."""
    losses: tuple[tuple[LearnerId, float], ...] = ()
    """What learners have lately reported of their own batches."""


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
    value_norms: tuple[tuple[float, ...], ...] = ()
    """How long each piece of each fragment would be if all of the fragment were of one size, √numel · RMS: the norms of
    the first contributions are compared with it. Empty where nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Completes :class:`~gruppetto.protocol.actions.Fold`."""

    round: Round
    fragment: Fragment
    learner: LearnerId
    cosine: float | None = None
    """Between the contribution and the fragment's momentum, estimated; None while there is no momentum."""


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
class GoesOnElsewhere:
    """This syncer is a shard of a run: whether another shard has not finished, or is not known to have."""

    goes_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The finished run is being put away: whoever has not said goodbye will not do so any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The process is asked to end: make durable what is published, and decide nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCheckpoint:
    """An operator, or the syncer's timer, wants a checkpoint of the whole run, under this name."""

    mark: str
    kept: tuple[str, ...] = ()
    """Checkpoints that can be gone on from now: their parts are still needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecorded:
    """Completes :class:`~gruppetto.protocol.actions.Checkpoint`; ``why`` says what went wrong, "" if nothing did."""

    mark: str
    why: str = ""


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
class Recovered:
    """Completes :class:`~gruppetto.protocol.actions.Recover`: bases of these versions are in host memory, checked.

    NEVER, or a vector that is too short, for fragments of which nothing was found. Who had them does not matter: a
    version has one value. What this learner has saved itself counts only if :meth:`LearnerCore.still_stands
    <gruppetto.protocol.learner.LearnerCore.still_stands>` says so.
    """

    versions: tuple[Version, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """An inner step begins. The clock is stamped now; said again before it is done, the stamp is renewed."""

    anew: bool = True
    """What came before, since it was said last, was no training (an evaluation): the time counts from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """An inner step is done; the parameters may be read and written until the next one starts."""

    tokens: int
    cursor: int
    """The next batch of the data slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The parameters may be read and written now, though no step was made (before training, while waiting)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """This learner has had notice. As at a boundary the parameters may be read now; no step follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The syncer has taken a contribution of this learner into ``round``: the one that was made of so many ``tokens``.
    Told only where an encoding leaves something unsaid (:mod:`gruppetto.protocol.rests`)."""

    epoch: Epoch
    round: Round
    fragment: Fragment
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSaved:
    """Completes :class:`~gruppetto.protocol.actions.SaveState`: where the part lies, or why there is none."""

    mark: str
    ok: bool
    text: str


SyncerEvent = (
    Hello
    | Progress
    | Answer
    | Deferred
    | Marked
    | Heartbeat
    | Goodbye
    | LinkLost
    | LookedAround
    | Seeded
    | Folded
    | OuterStepped
    | Persisted
    | PersistFailed
    | Published
    | GoesOnElsewhere
    | Settle
    | Stop
    | TakeCheckpoint
    | CheckpointRecorded
    | Tick
)
LearnerEvent = (
    Welcome
    | Refusal
    | Begin
    | Ask
    | Rejection
    | Clipping
    | Announcement
    | Marker
    | LinkDown
    | Arrived
    | Recovered
    | StepStarted
    | StepDone
    | Boundary
    | Leaving
    | StateSaved
    | Taken
)
