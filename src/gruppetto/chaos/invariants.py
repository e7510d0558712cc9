"""What must hold in a whole world: the names of it, what each means, and how it is said that one does not hold."""

from __future__ import annotations

from collections.abc import Callable

from gruppetto.chaos.gatekeeper import GATE_INVARIANTS

__all__ = ["WORLD_INVARIANTS", "BrokenWorldError", "demand"]

WORLD_INVARIANTS = {
    "a-stop-loses-nothing": "what a syncer has published that was stopped in good order, the next one begins from",
    "answers-are-true": "what a contribution says of its base, steps and tokens is what its bytes hold",
    "batch-merged-once": "no batch of a data slot is merged twice into one fragment, whoever trained on it",
    "begins-up-to-date": "who begins in a run under way has every fragment as its Welcome named it, or newer",
    "books-match-weights": "the ledger's merged tokens are those in the durable weights; none is consumed untrained",
    "checkpoints-end": "a checkpoint is closed when its time is up, without the parts of those who have not answered",
    "cursors-are-durable": "a slot is never handed out again from before a batch that is merged",
    "cut-is-consistent": "no part of a checkpoint holds what comes after another part, or misses what one has merged",
    "departed-are-one-sum": "the books name no more of those who have left than they are told to",
    "donors-have-the-weights": "only a process that holds every fragment is named as a donor, by its own name",
    "due-in-its-turn": "a fragment is merged in the rounds that its schedule names, also where that is a shard's",
    "durable-before-applied": "what a learner puts into its model was rightly published, and is newer than what it had",
    "durable-before-told": "no learner hears of a round that the last commit does not allow: it may be asked for again",
    "epochs-only-grow": "no learner goes back to an earlier life of the syncer",
    "every-fold-is-in": "an outer step has all contributions that were admitted, and at least a quorum of them",
    "merged-onto-its-base": "a contribution is merged into the value it was computed on, or one not too old",
    "never-waits": "a learner that has begun is always in a step, unless it is dead, stopped or has left",
    "notice-is-used": "who leaves on notice, in time and with a link, has offered all work that it may keep",
    "old-lives-are-fenced": "a message of an earlier epoch or incarnation changes nothing",
    "one-authority-per-epoch": "no two lives of the syncer have the same epoch",
    "one-value-per-version": "a version of a fragment has one value, for ever",
    "only-finite": "nothing that is not finite is merged",
    "progress-resumes": "when all faults have ended, rounds close, and everybody takes part and gets the results",
    "rests-are-said-once": "what an encoding leaves unsaid is said with the next contribution, if it has counted",
    "resumed-lives-go-on": "a learner that is resumed with the whole run goes on in the life that it was saved in",
    "rightly-refused": "only a superseded process or a full run turns a learner away",
    "seeded-once": "nobody is asked for initial weights once there are durable ones",
    "settled": "the books of a finished run have nothing open",
    "stamped-at-start": "the clock of a step is known when the step begins",
    "the-rest-is-ridden": "until the other shards of its run have finished, a finished one lets learners begin, leases "
    "each slot from where it is, and closes no books",
    "visitors-only-look": "who comes when the run is over gets its last weights, and changes neither members nor "
    "slots nor books",
    "wakes-lie-ahead": "the syncer never asks to be woken at a time that has come",
    **GATE_INVARIANTS,
}
"""Name and meaning of every invariant of a world; those of one syncer are in :mod:`gruppetto.protocol.invariants`."""


class BrokenWorldError(AssertionError):
    """An invariant does not hold. ``name`` is a key of :data:`WORLD_INVARIANTS`."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what} ({WORLD_INVARIANTS[name]})")


def demand(fine: bool, name: str, what: Callable[..., str]) -> None:
    """Raise :class:`BrokenWorldError` if it is not ``fine``; ``what`` was seen is put into words only then."""
    if not fine:
        raise BrokenWorldError(name, what())
