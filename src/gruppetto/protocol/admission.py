"""The admission gate: what a contribution must be before it may touch Θ (section 6).

Gate first, fold after: a folded contribution cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Container

from gruppetto.protocol.messages import Answer, ClipCause, RejectionReason
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = ["ADVICE", "CLIP_ADVICE", "ROUTINE", "judge"]

MAX_COUNT = 2**53
"""Counters beyond this are not exact in every language that reads a trace, and no run gets there."""

ADVICE: dict[RejectionReason, str] = {
    RejectionReason.UNKNOWN_LEARNER: "the syncer does not know this learner; it will be welcomed again",
    RejectionReason.STALE_EPOCH: "meant for an earlier life of the syncer; the next ask carries the new epoch",
    RejectionReason.STALE_INCARNATION: "another process has taken this learner's name; give each process its own",
    RejectionReason.LAYOUT: "the model is not the one this run trains; start the learner with the run's model",
    RejectionReason.LATE: "the round had closed; a slower link or step than the grace window allows",
    RejectionReason.NOT_ASKED: "nobody asked for this fragment in this round",
    RejectionReason.DUPLICATE: "this round has this learner's contribution already",
    RejectionReason.STALE_BASE: "computed against an older version; the current one is on its way",
    RejectionReason.NO_WORK: "no step since the fragment was last received",
    RejectionReason.IMPLAUSIBLE_COUNTS: "the step and token counters contradict each other; check tokens_per_step",
    RejectionReason.NOT_FINITE: "holds NaN or infinity; lower the learning rate, clip gradients, look at the data",
    RejectionReason.NORM: "many times longer than what others offer; lower the learning rate, clip gradients, look at "
    "the data and at how gradients are scaled (run.norm_factor is the limit)",
    RejectionReason.MALFORMED: "the body was cut short, too long, or failed its checksum; look at the link",
}
"""What each rejection means and what to do, for logs, reports and the learner's console."""

CLIP_ADVICE: dict[ClipCause, str] = {
    ClipCause.NORM: ADVICE[RejectionReason.NORM],
    ClipCause.WEIGHT: "it claims far more tokens than the others do in as many steps; check tokens_per_step "
    "(run.weight_cap is the limit)",
}
"""The same for contributions that were merged for less than they hold."""

ROUTINE = frozenset(
    {
        RejectionReason.UNKNOWN_LEARNER,
        RejectionReason.STALE_EPOCH,
        RejectionReason.LATE,
        RejectionReason.DUPLICATE,
        RejectionReason.STALE_BASE,
        RejectionReason.NO_WORK,
    }
)
"""These happen to healthy learners too, now and then, and need nobody's hand."""


def judge(
    answer: Answer,
    *,
    epoch: Epoch,
    incarnation: Incarnation | None,
    layout_hash: str,
    open_round: Round | None,
    due: Container[Fragment],
    answered: Container[tuple[LearnerId, Fragment]],
    version: Version,
    accept_stale_from: Version | None,
    unmerged: bool,
) -> RejectionReason | None:
    """The first reason not to merge ``answer``; None to admit it.

    ``incarnation`` is the learner's present life (None: unknown learner), ``open_round`` the round now taking answers
    (for a parting answer: the round in which its fragment is merged next), ``version`` the fragment's current version,
    ``accept_stale_from`` the oldest base that is tolerated (None: only the current one), ``unmerged`` whether all of
    its tokens are still open in the ledger.
    """
    if answer.epoch != epoch:
        return RejectionReason.STALE_EPOCH
    if incarnation is None:
        return RejectionReason.UNKNOWN_LEARNER
    if answer.incarnation != incarnation:
        return RejectionReason.STALE_INCARNATION
    if answer.layout_hash != layout_hash:
        return RejectionReason.LAYOUT
    if open_round is None or answer.round < open_round:
        return RejectionReason.LATE
    if answer.round > open_round or answer.fragment not in due:
        return RejectionReason.NOT_ASKED
    if (answer.learner, answer.fragment) in answered:
        return RejectionReason.DUPLICATE
    if answer.base_version != version:
        oldest = version if accept_stale_from is None else accept_stale_from
        if not (oldest <= answer.base_version < version and unmerged):
            return RejectionReason.STALE_BASE
    if answer.steps == 0 or answer.tokens == 0:
        return RejectionReason.NO_WORK
    plausible = 0 < answer.steps <= MAX_COUNT and 0 < answer.tokens <= answer.total_tokens <= MAX_COUNT
    if not (plausible and 0 <= answer.cursor <= MAX_COUNT and unmerged):
        return RejectionReason.IMPLAUSIBLE_COUNTS
    if not answer.finite:
        return RejectionReason.NOT_FINITE
    return None
