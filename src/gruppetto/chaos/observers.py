"""What must hold in a whole world, judged by what would be in the weights and never by what a core believes.

:class:`gruppetto.protocol.invariants.Observer` watches the syncer from inside; this watch stands outside, over all
lives of everybody, and keeps books of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gruppetto.chaos.disk import Commit
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import Apply, Fold, LearnerAction, Send, SyncerAction, TakeOuterStep
from gruppetto.protocol.events import Settle, SyncerEvent
from gruppetto.protocol.invariants import Observer
from gruppetto.protocol.messages import Announcement, Answer, Begin, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.wire import Frame

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess
    from gruppetto.chaos.syncer import SyncerProcess
    from gruppetto.chaos.world import World

__all__ = ["WORLD_INVARIANTS", "BrokenWorldError", "Watch"]

WORLD_INVARIANTS = {
    "answers-are-true": "what a contribution says of its base, steps and tokens is what its bytes hold",
    "batch-merged-once": "no batch of a data slot is merged twice into one fragment, whoever trained on it",
    "books-match-weights": "the ledger's merged tokens are those in the durable weights; none is consumed untrained",
    "cursors-are-durable": "a slot is never handed out again from before a batch that is merged",
    "durable-before-told": "no learner hears of a round that is not durable: after a crash it is asked for again",
    "durable-before-applied": "what a learner puts into its model is durable at the syncer, and newer than what it had",
    "every-fold-is-in": "an outer step has all contributions that were admitted, and at least a quorum of them",
    "merged-onto-its-base": "a contribution is merged into the value it was computed on, or one not too old",
    "never-waits": "a learner that has begun is always in a step, unless it is dead, stopped or has left",
    "old-lives-are-fenced": "a message of an earlier epoch or incarnation changes nothing",
    "one-value-per-version": "a version of a fragment has one value, for ever",
    "only-finite": "nothing that is not finite is merged",
    "progress-resumes": "when all faults have ended, rounds close, and everybody takes part and gets the results",
    "rightly-refused": "only a superseded process, a finished run or a full one turns a learner away",
    "seeded-once": "nobody is asked for initial weights once there are durable ones",
    "settled": "the books of a finished run have nothing open",
    "stamped-at-start": "the clock of a step is known when the step begins",
    "wakes-lie-ahead": "the syncer never asks to be woken at a time that has come",
}
"""Name and meaning of every invariant of a world; those of one syncer are in :mod:`gruppetto.protocol.invariants`."""


class BrokenWorldError(AssertionError):
    """An invariant does not hold. ``name`` is a key of :data:`WORLD_INVARIANTS`."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what} ({WORLD_INVARIANTS[name]})")


class Watch:
    """Sees everything that happens in one world. Raises at the first thing that is wrong; steers nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inside = Observer()
        self._values: dict[tuple[Fragment, Version], int] = {}
        """The one durable value of each version."""
        self._durable: set[int] = set()
        self._durable_round = 0
        self._merged: set[tuple[Fragment, int, int]] = set()
        """(fragment, slot, number) of every batch in the durable weights."""
        self._merged_tokens = 0
        self._cursors: dict[int, int] = {}
        self._welcomed: dict[LearnerId, tuple[str, Incarnation]] = {}
        self.newest: dict[LearnerId, str] = {}
        """The process that was last welcome under each name, over all lives of the syncer."""
        self._answer: Answer | None = None
        self._folds: dict[Fragment, int] = {}

    # ── the syncer ───────────────────────────────────────────────────────────────────────────────────────────────

    def new_core(self, syncer: SyncerProcess) -> None:
        """Whoever was welcome before has to say hello again."""
        self._welcomed, self._folds = {}, {}

    def stepped(self, syncer: SyncerProcess, event: SyncerEvent, actions: Sequence[SyncerAction]) -> None:
        core, now = syncer.core, self.world.engine.now
        self.inside.saw(core, event, actions)
        _demand(core.wake_at is None or core.wake_at > now, "wakes-lie-ahead", lambda: f"{core.wake_at} at {now}")
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Welcome | Begin | Announcement):
                told = action.message.round
                _demand(told <= self._durable_round, "durable-before-told", lambda a=action: f"{a}")
                if isinstance(action.message, Welcome):
                    self._welcome(action.to, action.session, action.message)
        if isinstance(event, Settle) and core.phase is Phase.FINISHED:
            _demand(core.ledger.open_total() == 0, "settled", lambda: f"{core.ledger.accounts}")

    def _welcome(self, to: LearnerId, session: str, welcome: Welcome) -> None:
        self._welcomed[to], self.newest[to] = (session, welcome.incarnation), session
        _demand(not (welcome.seed and self._durable), "seeded-once", lambda: f"{to}")
        merged = self._cursors.get(welcome.slot, 0)
        _demand(welcome.cursor >= merged, "cursors-are-durable", lambda: f"{to} starts at {welcome.cursor} < {merged}")

    def at_the_gate(self, syncer: SyncerProcess, answer: Answer, work: Work) -> None:
        self._answer = answer

    def folding(self, syncer: SyncerProcess, fold: Fold, work: Work) -> None:
        answer, p = self._answer, fold.fragment
        assert answer is not None
        life = self._welcomed.get(fold.learner)
        _demand(
            answer.epoch == syncer.epoch and life == (work.session, answer.incarnation),
            "old-lives-are-fenced",
            lambda: f"{answer} is merged in epoch {syncer.epoch}, where {fold.learner} is {life}",
        )
        current = syncer.published[p]
        oldest = current.version - (self.world.setting.sync_period if self.world.setting.stale == "accept" else 0)
        fits = work.base == current.number or (
            oldest <= work.base_version < current.version and self._values.get((p, work.base_version)) == work.base
        )
        _demand(fits, "merged-onto-its-base", lambda: f"{work} into {current}")
        _demand(work.finite, "only-finite", lambda: f"{work}")
        self._folds[p] = self._folds.get(p, 0) + 1

    def outer_step(
        self, syncer: SyncerProcess, action: TakeOuterStep, parts: dict[Fragment, list[tuple[Work, int]]]
    ) -> None:
        degrade = self.world.setting.when_short == "degrade"
        quorum = 1 if degrade else self.world.setting.min_quorum
        for p in action.fragments:
            folds = self._folds.pop(p, 0)
            fine = len(parts[p]) == folds >= quorum
            _demand(fine, "every-fold-is-in", lambda p=p, n=folds: f"{len(parts[p])} of {n}, K = {quorum}")

    def durable(self, commit: Commit) -> None:
        """A commit has reached the disk."""
        self._durable_round = commit.state.round
        for content in commit.contents:
            key = (content.fragment, content.version)
            known = self._values.setdefault(key, content.number)
            _demand(known == content.number, "one-value-per-version", lambda key=key: f"{key}")
            if content.number not in self._durable:
                self._durable.add(content.number)
                self._merge(content)
        books = commit.state.ledger
        _demand(
            books.totals.merged == self._merged_tokens,
            "books-match-weights",
            lambda: f"{books.totals.merged} merged in the ledger, {self._merged_tokens} in the weights",
        )
        for name, consumed in books.consumed_by.items():
            trained = self.world.trained_by(name)
            _demand(
                consumed <= trained,
                "books-match-weights",
                lambda name=name, c=consumed, t=trained: f"{name} consumed {c} and trained {t}",
            )
        cursors = dict(commit.state.cursors)
        for slot, merged in self._cursors.items():
            _demand(
                cursors.get(slot, 0) >= merged,
                "cursors-are-durable",
                lambda slot=slot: f"slot {slot}: {cursors}, merged {self._cursors}",
            )

    def _merge(self, content: Content) -> None:
        self._merged_tokens += sum(content.booked)
        for work in content.parts:
            for batch in work.batches:
                key = (content.fragment, batch.slot, batch.number)
                _demand(key not in self._merged, "batch-merged-once", lambda key=key: f"{key} again in {content}")
                self._merged.add(key)
                self._cursors[batch.slot] = max(self._cursors.get(batch.slot, 0), batch.number + 1)

    # ── learners ─────────────────────────────────────────────────────────────────────────────────────────────────

    def applied(self, process: LearnerProcess, action: Apply, arrived: Content, base: Content | None) -> None:
        key = (action.fragment, action.version)
        again = action.fragment in process.of_old_life  # a new life applies its bases once more
        is_news = base is None or arrived.version >= base.version + (0 if again else 1)
        fine = self._values.get(key) == arrived.number and is_news
        _demand(fine, "durable-before-applied", lambda: f"{process.name} applies {arrived} over {base}")

    def offered(self, process: LearnerProcess, answer: Answer, work: Work | None, base: Content) -> None:
        """``work`` is what lies in the snapshot, ``base`` what it is subtracted from."""
        fine = (
            work is not None
            and len(work.batches) > 0
            and work.base == base.number
            and (answer.base_version, answer.steps, answer.tokens) == (base.version, len(work.batches), work.tokens)
            and answer.tokens <= answer.total_tokens
            and all(b.slot == process.core.slot and b.number < answer.cursor for b in work.batches)
        )
        _demand(fine, "answers-are-true", lambda: f"{answer} of {work} on {base}, slot {process.core.slot}")

    def step_done(self, process: LearnerProcess, stamp: int) -> None:
        """``stamp`` is what was known when the step began; only a Welcome may lift it meanwhile."""
        clock = process.core.clock
        fine = clock <= max(stamp, process.welcomed_at)
        _demand(fine, "stamped-at-start", lambda: f"{process.name}: {clock} > {stamp}")

    def end(self) -> None:
        """Nobody stands still."""
        for process in self.world.processes:
            idle = process.begun and process.alive and not process.left and not process.paused
            if idle and not process.stepping and not process.core.finished:
                raise BrokenWorldError("never-waits", f"{process.name} at {self.world.engine.now}")

    # ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def nothing_changes_in_syncer(self, syncer: SyncerProcess, frame: Frame) -> Iterator[None]:
        before = _standing_of(syncer)
        yield
        _demand(_standing_of(syncer) == before, "old-lives-are-fenced", lambda: f"the syncer heeds {frame}")

    @contextmanager
    def nothing_changes_in_learner(self, process: LearnerProcess, frame: Frame) -> Iterator[None]:
        core = process.core
        before = (core.snapshot(), core.begun, core.finished, dict(core.rejections))
        yield
        after = (core.snapshot(), core.begun, core.finished, dict(core.rejections))
        _demand(before == after, "old-lives-are-fenced", lambda: f"{process.name} heeds {frame}")

    def ghost_answered(self, frame: Frame, actions: Sequence[LearnerAction]) -> None:
        _demand(not actions, "old-lives-are-fenced", lambda: f"{frame} leads to {actions}")


def _standing_of(syncer: SyncerProcess) -> object:
    """All that a learner's word can change in the syncer, but for its having been heard."""
    core = syncer.core
    members = tuple((m.learner, m.incarnation, m.phase, m.clock, m.steps, dict(m.versions)) for m in core.members)
    totals = core.ledger.totals
    expected = dict(core.open_round.expected_at) if core.open_round is not None else None
    books = (core.ledger.consumed, totals.merged, totals.discarded, totals.lost)
    return (core.phase, core.round, core.versions, members, books, expected)


def _demand(fine: bool, name: str, what: object) -> None:
    if not fine:
        assert callable(what)
        raise BrokenWorldError(name, what())
