"""What a core decides, for its shell to carry out, in the order given.

The order rule of the syncer: ``TakeOuterStep`` → ``Persist`` → ``Publish``. A shell starts one only after the
completion event of the one before has been fed back, so what a learner has seen always survives the syncer (section 9).
With ``durability = "interval"`` a commit allows some rounds after it to be published without one of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    ApplyMode,
    Deferred,
    Donor,
    FromSyncer,
    Goodbye,
    Marked,
    Progress,
    RejectionReason,
)
from gruppetto.protocol.state import LearnerState, SyncerState
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Round, Version

__all__ = [
    "Alarm",
    "AlarmKind",
    "AlarmOver",
    "Apply",
    "Checkpoint",
    "CheckpointClosed",
    "CheckpointRefused",
    "Drop",
    "DropRests",
    "Fold",
    "KeepRest",
    "LearnerAction",
    "MemberChanged",
    "Persist",
    "Publish",
    "Pull",
    "QuorumMet",
    "Recover",
    "RoundClosed",
    "SaveState",
    "Seed",
    "Send",
    "SyncerAction",
    "TakeOuterStep",
    "TakeSnapshot",
]


class AlarmKind(StrEnum):
    """What an operator should know about; each is a row of :data:`gruppetto.protocol.alarm_table.ALARMS`."""

    QUORUM_SHORT = "quorum-short"
    ANSWERS_SHORT = "answers-short"
    ZERO_UPDATE = "zero-update"
    NOT_FINITE = "not-finite"
    PERSIST_FAILED = "persist-failed"
    ONE_LEARNER = "one-learner"
    DIRECTION = "direction"
    WENT_BACK = "went-back"
    DAMAGED = "damaged"
    SLOW_SYNCER = "slow-syncer"
    GRACE_SPENT = "grace-spent"
    LEFT_OUT = "left-out"
    DISK_FILLING = "disk-filling"
    CLOCK_SKEW = "clock-skew"
    DIVERGES = "diverges"
    EXPIRY = "expiry"


# ── the syncer ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Hand a message to one learner's control connection. ``session`` names the process when it has no member yet."""

    to: LearnerId
    session: str
    message: FromSyncer


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Fold an admitted contribution into the running merge of its fragment. Cannot be taken back."""

    round: Round
    fragment: Fragment
    learner: LearnerId
    weight: float
    """w = c_tokens² / c_steps (section 4), not normalised, and capped (section 6)."""
    caps: tuple[tuple[int, float], ...] = ()
    """(piece, norm): these pieces are folded as if they were that long; their direction stays. Mostly empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Throw the bytes of a contribution away: it is not merged. The learner is told in a ``Send``."""

    round: Round
    fragment: Fragment
    learner: LearnerId
    reason: RejectionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOuterStep:
    """Close the running merges of these fragments and take one outer step on each."""

    round: Round
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Make ``state`` and the new value of ``fragments`` durable, all or nothing."""

    round: Round
    fragments: tuple[Fragment, ...]
    state: SyncerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Make the new values readable, and announce them to these learners, contributors or not."""

    to: tuple[LearnerId, ...]
    message: Announcement


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumMet:
    """For the record: round t has its quorum and asks."""

    round: Round
    quorum_s: float
    """Seconds that the round waited for its quorum (ξ_quorum of this round)."""
    at_clock: int
    """Live learners at or beyond clock t."""
    live: int
    grace_s: float
    """The grace window opened for this round (ξ_grace); 0 while it is unknown or off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundClosed:
    """For the record: which round closed, why, and with whom."""

    round: Round
    why: str
    participants: tuple[LearnerId, ...]
    """Learners whose contribution to at least one fragment of the round is merged."""
    live: int
    grace_spent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChanged:
    """For the record: a learner joined, came back, went away, left or was replaced."""

    learner: LearnerId
    state: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """For the record and for the operator: what is wrong, and what to do."""

    kind: AlarmKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmOver:
    """An alarm does not hold any more."""

    kind: AlarmKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Record the syncer's part of a checkpoint: ``state``, and the published value of every fragment, which is that of
    the newest commit. Completed by :class:`~gruppetto.protocol.events.CheckpointRecorded`."""

    mark: str
    round: Round
    state: SyncerState


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointClosed:
    """Everybody has answered, or is left out: the checkpoint counts from now on, unless ``why`` says what it lacks."""

    mark: str
    round: Round
    parts: tuple[tuple[LearnerId, Incarnation, str], ...]
    """Who is in it, and where its part lies, by its own word."""
    left_out: tuple[tuple[LearnerId, str], ...]
    """Who is not, and why."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRefused:
    """No checkpoint is taken now."""

    mark: str
    why: str


# ── a learner ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """Upload the initial weights, all fragments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Download this version of a global fragment. A newer one asked for later replaces it."""

    fragment: Fragment
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Put an arrived global fragment into the model, now, and remember it as the base.

    Where ``version`` is that of the base held already, nothing has arrived: put the base into the model again.
    """

    fragment: Fragment
    version: Version
    mode: ApplyMode
    blend_alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Find a state to begin from: ask the donors, then what this learner has saved. Nothing is pulled meanwhile.

    Completed by :class:`~gruppetto.protocol.events.Recovered`, also when nothing was found.
    """

    donors: tuple[Donor, ...]
    versions: tuple[Version, ...]
    """What the bases have to be, or newer; the version vector of the Welcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Copy these fragments of the model to host memory, now. They replace the snapshots of the last boundary."""

    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRest:
    """The contribution to ``round`` that was made of so many ``tokens`` has counted: what its encoding left unsaid is
    to be said with the next one of this fragment, and nothing else that was left (:mod:`gruppetto.protocol.rests`)."""

    fragment: Fragment
    round: Round
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRests:
    """A new life begins: whatever encodings have left unsaid stays unsaid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """Save the learner's part of a checkpoint, as everything is now, between the actions before and those after this
    one: model, optimizer, bases, and ``state`` for the core. Completed by
    :class:`~gruppetto.protocol.events.StateSaved`."""

    mark: str
    round: Round
    state: LearnerState


SyncerAction = (
    Send
    | Fold
    | Drop
    | TakeOuterStep
    | Persist
    | Publish
    | QuorumMet
    | RoundClosed
    | MemberChanged
    | Alarm
    | AlarmOver
    | Checkpoint
    | CheckpointClosed
    | CheckpointRefused
)
LearnerAction = (
    Answer
    | Deferred
    | Progress
    | Marked
    | Goodbye
    | Seed
    | Pull
    | Recover
    | Apply
    | TakeSnapshot
    | SaveState
    | KeepRest
    | DropRests
)
