"""Every alarm of a syncer: when it holds, what is usually behind it, and what to do. docs/alarms.md is written from it.

An alarm is said once, with its figures and its action, and withdrawn when it no longer holds. One that tells of
something that has happened does not last: it is said, and that is all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gruppetto.protocol.actions import AlarmKind

__all__ = [
    "ALARMS",
    "ALWAYS_SPENT",
    "FALLEN_AGAIN",
    "LOSS_FACTOR",
    "LOSS_NATS",
    "LOSS_NOISES",
    "MOSTLY_SLOW",
    "PATIENCE_S",
    "ROOM_AGAIN",
    "SELDOM_SLOW",
    "SELDOM_SPENT",
    "SHARED_AGAIN",
    "SKEWED_NO_MORE_S",
    "SKEW_S",
    "SOLO_SHARE",
    "AlarmRow",
]

SOLO_SHARE, SHARED_AGAIN = 0.75, 0.6
"""A learner that supplies more of the recently merged tokens than the first, while others live, raises an alarm; below
the second the cause has gone. Between them nothing changes, so that it is not raised at every crossing."""
PATIENCE_S = 5.0
"""How long a shortage has to last. Every round is short of answers for the moment in which they travel."""
MOSTLY_SLOW, SELDOM_SLOW = 0.75, 0.25
ALWAYS_SPENT, SELDOM_SPENT = 0.9, 0.5
"""Shares of the rounds lately. Steps of uneven length cross any single mark at every other round."""
ROOM_AGAIN = 1.5
"""A disk is filling until it has so many times the room that is wanted."""
SKEW_S, SKEWED_NO_MORE_S = 5.0, 3.0
LOSS_FACTOR, LOSS_NATS, LOSS_NOISES, FALLEN_AGAIN = 1.5, 0.5, 4.0, 0.5
"""A loss diverges at so many times its best, by so much at least, and by so many times its usual noise; it has come
back when no more than the last of that is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRow:
    """One alarm, in sentences for people."""

    holds: str
    """When it is said, and when withdrawn."""
    cause: str
    """What is usually behind it."""
    action: str
    """What to do. The text of every such alarm ends with it."""
    lasts: bool = True
    """It holds until its cause has gone; otherwise it tells of something that has happened."""


ALARMS: Mapping[AlarmKind, AlarmRow] = MappingProxyType(
    {
        AlarmKind.QUORUM_SHORT: AlarmRow(
            holds=f"Fewer learners than run.min_quorum have been live for {PATIENCE_S:g} s, until enough are.",
            cause="Learners have died, have lost their link, or were never started.",
            action='Learners train on; start more, or set run.when_short = "degrade".',
        ),
        AlarmKind.ANSWERS_SHORT: AlarmRow(
            holds=f"For {PATIENCE_S:g} s a round has had fewer contributions than its quorum and nobody is about to "
            "answer, until enough have come or their givers have gone.",
            cause="Contributions are refused: stale bases, wrong counts, values that are not finite, a wrong layout.",
            action="See the rejections by reason.",
        ),
        AlarmKind.ZERO_UPDATE: AlarmRow(
            holds="The last merged update of some fragment was exactly zero, until that of every fragment is not.",
            cause="The tensors of that fragment are frozen, or the learners do not train.",
            action="Leave frozen tensors out of the run, or see why the learners do not train.",
        ),
        AlarmKind.NOT_FINITE: AlarmRow(
            holds="The last merge of some fragment was not finite and was not published, until every one is finite.",
            cause="The run diverges, or one learner does and the gate lets it through.",
            action="Lower the outer learning rate or look for a diverging learner.",
        ),
        AlarmKind.PERSIST_FAILED: AlarmRow(
            holds="A round could not be made durable, until it is; it is tried again every second.",
            cause="The disk under the state directory is full, gone, or not to be written.",
            action="Free disk space or repair the state directory.",
        ),
        AlarmKind.ONE_LEARNER: AlarmRow(
            holds=f"One learner supplied more than {SOLO_SHARE:.0%} of the tokens merged lately though others are "
            f"live, until it supplies less than {SHARED_AGAIN:.0%} or is alone.",
            cause="The others are much slower, late, or rejected.",
            action="Look at why the others are late or rejected.",
        ),
        AlarmKind.DIRECTION: AlarmRow(
            holds="The contributions of a minority point against the momentum while those of the others do not, until "
            "their mean points forward again. Said anew when one more learner does so.",
            cause="Other data, wrong labels, a far too large learning rate, or a sign error there.",
            action="They are merged all the same: look at the data, the labels and the learning rate there, or stop "
            "that learner.",
        ),
        AlarmKind.WENT_BACK: AlarmRow(
            holds="A syncer began from less than the one before may have published.",
            cause='A kill under run.durability = "interval", a takeover, or damaged files.',
            action="Nothing to do; the log of the syncer says why.",
            lasts=False,
        ),
        AlarmKind.DAMAGED: AlarmRow(
            holds="A syncer found something in its state directory damaged or missing when it began, and went on from "
            "something older.",
            cause="A failing disk, a power loss on a disk that does not keep its word, or somebody's broom.",
            action="Look after that disk.",
            lasts=False,
        ),
        AlarmKind.SLOW_SYNCER: AlarmRow(
            holds=f"In {MOSTLY_SLOW:.0%} of the last rounds merging, persisting and publishing took longer, on "
            "average, than a step of the learners at whose pace rounds could go, until it does in fewer than "
            f"{SELDOM_SLOW:.0%}.",
            cause="Steps shorter than a commit to disk, a slow or shared disk, or more bytes than it can merge.",
            action="Learners run ahead, and work is discarded: use larger batches, a faster disk, "
            'run.durability = "interval", or max_run_ahead.',
        ),
        AlarmKind.GRACE_SPENT: AlarmRow(
            holds=f"{ALWAYS_SPENT:.0%} of the last rounds spent all of their grace window and closed without somebody "
            f"who was live, until fewer than {SELDOM_SPENT:.0%} do.",
            cause="A learner or link that is a little too slow for the window, round after round.",
            action="See who is late: smaller steps, a wider link or a narrower codec there, or a larger "
            "run.overlap_steps.",
        ),
        AlarmKind.LEFT_OUT: AlarmRow(
            holds="A learner has been live for run.sync_period rounds, 32 at least, and none of them holds work of it, "
            "until one does or it is gone.",
            cause="Its contributions are late or refused, or its step lasts longer than all of these rounds.",
            action="See its log, and the rejections by reason.",
        ),
        AlarmKind.DISK_FILLING: AlarmRow(
            holds="Less room is left under the state directory than the weights with their momentum take, until there "
            f"is {ROOM_AGAIN:g} times as much.",
            cause="Checkpoints that nobody deletes, traces, or others on the same disk.",
            action="Free disk space before commits fail; rounds then stand still, and learners train on.",
        ),
        AlarmKind.CLOCK_SKEW: AlarmRow(
            holds=f"The wall clock of a live learner is more than {SKEW_S:g} s off the syncer's, until all are within "
            f"{SKEWED_NO_MORE_S:g} s.",
            cause="No time service on that machine, or on the syncer's.",
            action="Set the clock: nothing is decided by it, but logs cannot be compared, and certificates may not be "
            "valid.",
        ),
        AlarmKind.DIVERGES: AlarmRow(
            holds="The loss that most learners report, smoothed, is more than half above the lowest that this syncer "
            f"has seen, and by {LOSS_NATS:g} and {LOSS_NOISES:g} times its usual noise at least, until no "
            f"more than {FALLEN_AGAIN:.0%} of that is left; or the loss of a single live learner is not finite.",
            cause="A learning rate that is too large, within or without; bad data; or a task that has changed.",
            action="Lower the learning rate, or stop and go on from a checkpoint before it rose.",
        ),
        AlarmKind.EXPIRY: AlarmRow(
            holds="A certificate of the syncer, of its authority or of a learner that is connected expires within 14 "
            "days, until none does.",
            cause="Time.",
            action="Say gruppetto certs renew and put the file where the old one lies; nobody has to be started again.",
        ),
    }
)
