"""What learners and the syncer say to each other.

A message is an event for the core that receives it. Tensors never ride in messages: an :class:`Answer` announces a
contribution whose bytes lie with the shell, an :class:`Announcement` names versions that the learner then pulls.

::

    learner                              syncer
      │ Hello ───────────────────────────▶ │   who I am, what I hold
      │ ◀──────────────── Welcome | Refusal │   epoch, incarnation, slot, cursor, versions, run settings
      │   (pull what is missing)            │
      │ Progress ────────────────────────▶ │   ready
      │ ◀────────────────────────── Begin   │
      │ Progress ────────────────────────▶ │   after every step: clock, step time, tokens, cursor
      │ ◀──────────────────────────── Ask   │   the fragments due at round t
      │ Answer | Deferred ───────────────▶ │   the contribution, or "at my next step boundary"
      │ ◀────────────────────── Rejection   │   with the reason, when it may not be merged
      │ ◀────────────────────── Clipping    │   merged, but shortened or for less than it claims
      │ ◀─────────────────── Announcement   │   round t is closed; these are the new versions
      │ Answer, parting ─────────────────▶ │   on notice: what it has of every fragment, ahead of its round
      │ ◀───────────────────────── Marker   │   here the cut of a checkpoint goes through this stream
      │ Marked ──────────────────────────▶ │   my part of it is saved, or why it is not
      │ Goodbye ─────────────────────────▶ │
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gruppetto.protocol.units import NO_EPOCH, UNBORN, Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = [
    "Announcement",
    "Answer",
    "Applied",
    "ApplyMode",
    "Ask",
    "Begin",
    "ClipCause",
    "Clipping",
    "Deferred",
    "Donor",
    "FromLearner",
    "FromSyncer",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "Marked",
    "Marker",
    "Progress",
    "Refusal",
    "RefusalReason",
    "Rejection",
    "RejectionReason",
    "Welcome",
]


class RefusalReason(StrEnum):
    """Why the syncer does not take a learner in."""

    LAYOUT = "layout"
    """The model is not the one that this run trains."""
    WRONG_RUN = "wrong-run"
    """The learner belongs to another run."""
    SUPERSEDED = "superseded"
    """A newer process has taken this learner's name."""
    FULL = "full"
    """The run has as many learners or data slots as it may have."""
    CANNOT_SEED = "cannot-seed"
    """The syncer holds no weights yet and this learner has none to give."""
    AHEAD = "ahead"
    """The learner holds weights that this run has not made: it was resumed from an earlier moment."""


class RejectionReason(StrEnum):
    """Why a contribution is not merged (section 6 of the algorithm, the admission gate)."""

    UNKNOWN_LEARNER = "unknown-learner"
    STALE_EPOCH = "stale-epoch"
    STALE_INCARNATION = "stale-incarnation"
    LAYOUT = "layout"
    LATE = "late"
    NOT_ASKED = "not-asked"
    DUPLICATE = "duplicate"
    STALE_BASE = "stale-base"
    NO_WORK = "no-work"
    IMPLAUSIBLE_COUNTS = "implausible-counts"
    NOT_FINITE = "not-finite"
    NORM = "norm"
    MALFORMED = "malformed"


class ClipCause(StrEnum):
    """Why a contribution is merged for less than it holds (section 6)."""

    NORM = "norm"
    """A piece is far longer than what learners offer for it: it is folded with its yardstick for a norm."""
    WEIGHT = "weight"
    """Its token counts would let it dominate: it is folded with the largest weight that is allowed."""


class ApplyMode(StrEnum):
    """What a learner does with a global fragment Θ that has arrived (section 2)."""

    OVERWRITE = "overwrite"
    """θ ← Θ, as in the paper. The work done while the fragment was in flight is discarded."""
    BLEND = "blend"
    """θ ← α·θ + (1 − α)·Θ."""
    CARRY = "carry"
    """θ ← Θ + (θ − θ_snapshot): the work done during the flight is kept, and counted in the next contribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A learner introduces itself, at its first connection and at every later one."""

    learner: LearnerId
    session: str
    """Random, made once per process: tells a reconnecting process from a new one with the same name."""
    layout_hash: str
    run_id: str = ""
    """The run it belongs to; empty before the first Welcome."""
    incarnation: Incarnation = UNBORN
    versions: tuple[Version, ...] = ()
    """The base version it holds of each fragment; empty when it holds none."""
    can_seed: bool = True
    """It has initial weights to give, should the syncer have none."""
    donates_at: str = ""
    """Where other learners can ask it for its state, HOST:PORT; empty: nowhere."""
    needs_state: bool = False
    """It begins, and would rather take optimizer state and bases from another learner than begin without."""
    epoch: Epoch = NO_EPOCH
    """The last life of the syncer that it has heard of."""
    continues: str = ""
    """The session whose part of a checkpoint it goes on from, if the whole run is resumed from that checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """A live learner that gives its state to those who begin."""

    learner: LearnerId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The syncer takes a learner in, and says how this run works."""

    run_id: str
    epoch: Epoch
    incarnation: Incarnation
    """The life that begins or goes on; UNBORN for a visitor: who comes when the run is over, for the last weights."""
    goes_on: bool = False
    """In the life that the Hello says it continues."""
    slot: int
    """The data slot leased to this learner; 0, and nobody's lease, for a visitor."""
    cursor: int
    """The first batch of that slot which no accepted contribution has used."""
    round: Round
    """The newest closed round."""
    versions: tuple[Version, ...]
    """The version of each global fragment; empty when there are no weights yet."""
    seed: bool
    """Please send your initial weights: they become version 0."""
    begun: bool
    """Training is under way; otherwise a :class:`Begin` follows."""
    num_fragments: int
    sync_period: int
    snapshot_window: int
    apply: ApplyMode
    blend_alpha: float
    rounds: Round | None
    """The last round T; None for a run without an end."""
    offsets: tuple[int, ...] = ()
    """When each fragment is due (:class:`~gruppetto.protocol.schedule.Schedule`); empty: evenly spread."""
    donors: tuple[Donor, ...] = ()
    """Whom to ask for a state, best first; empty for who needs none, and while nobody has one to give."""
    accepts_stale: bool = False
    """Work on a base that is not the current one may be merged."""
    finished: bool = False
    """The last round is closed, and these are its versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The syncer does not take a learner in. Final: trying again without a change is useless."""

    reason: RefusalReason
    text: str
    epoch: Epoch = NO_EPOCH
    """Whose refusal it is, if it has begun to serve a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Enough learners are here: start training."""

    epoch: Epoch
    round: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A learner has put a global fragment into its model."""

    fragment: Fragment
    version: Version
    at_tokens: int
    """The learner's token total when it did."""
    kept_tokens: int = 0
    """Tokens that stay counted for this fragment: those in flight under ``carry``, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Sent at every step boundary, coalesced when the link is slow. Totals count this incarnation."""

    learner: LearnerId
    incarnation: Incarnation
    epoch: Epoch
    clock: int
    """The stamp of the step just done: 1 + max(own clock, newest round observed) when it started."""
    step_s: float
    """Seconds that the step took; 0 before the first step."""
    steps: int
    tokens: int
    cursor: int
    applied: tuple[Applied, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Round t has its quorum: give your outer gradients of the fragments due."""

    epoch: Epoch
    round: Round
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A contribution Δ = base − θ of one fragment, with its counters. The bytes lie with the shell."""

    learner: LearnerId
    incarnation: Incarnation
    epoch: Epoch
    round: Round
    fragment: Fragment
    base_version: Version
    steps: int
    """Inner steps since the learner last received this fragment (c_steps)."""
    tokens: int
    """Tokens since the learner last received this fragment (c_tokens)."""
    total_tokens: int
    """The learner's token total at the snapshot; bounds ``tokens``."""
    cursor: int
    """The first batch of its data slot that is not in this contribution."""
    layout_hash: str
    finite: bool = True
    """Every value is finite. Set by the receiver, who looked."""
    norms: tuple[float, ...] = ()
    """The norm of each piece of the fragment. Set by the receiver, who looked; empty where nobody did."""
    parting: bool = False
    """The learner leaves: nobody asked, and ``round`` is the next at which the fragment is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """No snapshot of what was asked for: the answer comes from the next step boundary."""

    learner: LearnerId
    incarnation: Incarnation
    epoch: Epoch
    round: Round
    expected_s: float
    """Seconds until that boundary, by the learner's own step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A contribution was not merged."""

    epoch: Epoch
    round: Round
    fragment: Fragment
    reason: RejectionReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """A contribution was merged, but not for all it claims."""

    epoch: Epoch
    round: Round
    fragment: Fragment
    cause: ClipCause
    factor: float
    """How many times too long its longest piece was, or too heavy the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Global fragments are ready to be pulled. ``round`` is the newest closed round."""

    epoch: Epoch
    round: Round
    versions: tuple[tuple[Fragment, Version], ...]
    finished: bool = False
    """This was the last round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A whole-run checkpoint cuts this learner's stream here: what was announced before belongs to it, nothing after.

    Travels in order with the announcements; see :mod:`gruppetto.protocol.marking`.
    """

    epoch: Epoch
    mark: str
    """The name of the checkpoint."""
    round: Round
    """The newest round that the syncer's part holds."""
    kept: tuple[str, ...] = ()
    """Older checkpoints whose parts are still needed, so that a learner can tell which are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A learner has saved its part of a checkpoint, or says why it has not."""

    learner: LearnerId
    incarnation: Incarnation
    epoch: Epoch
    mark: str
    ok: bool
    text: str
    """Where the part lies, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """I live. Travels on its own connection, so that a saturated data path never looks like death."""

    learner: LearnerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """A learner leaves on purpose, or because its training has failed: ``why`` says of what, "" of nothing."""

    learner: LearnerId
    incarnation: Incarnation
    why: str = ""


FromLearner = Hello | Progress | Answer | Deferred | Marked | Heartbeat | Goodbye
FromSyncer = Welcome | Refusal | Begin | Ask | Rejection | Clipping | Announcement | Marker


FAILED = "its training failed: "
"""How the syncer begins to say why a learner has left that said so."""
MAX_WHY = 200


def in_a_line(words: str) -> str:
    """What somebody else has said, fit for logs and pages: one line, printable, not long.

    >>> in_a_line("ValueError: no\\nsuch \\x1b[1mthing")
    'ValueError: no such [1mthing'
    """
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in words[: 4 * MAX_WHY]).split())
    return plain if len(plain) <= MAX_WHY else f"{plain[: MAX_WHY - 1]}…"
