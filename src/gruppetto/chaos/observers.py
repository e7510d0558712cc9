"""What must hold in a whole world, judged by what would be in the weights and never by what a core believes.

:class:`gruppetto.protocol.invariants.Observer` watches the syncer from inside; this watch stands outside, over all
lives of everybody, and keeps books of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from gruppetto.chaos.cut import Cut, Truth
from gruppetto.chaos.disk import Commit
from gruppetto.chaos.gatekeeper import Gatekeeper
from gruppetto.chaos.invariants import BrokenWorldError, demand
from gruppetto.chaos.owing import Owing
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import (
    Apply,
    Checkpoint,
    CheckpointClosed,
    Fold,
    Send,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.events import Settle, SyncerEvent, TakeCheckpoint
from gruppetto.protocol.invariants import Observer
from gruppetto.protocol.messages import Announcement, Answer, Begin, Progress, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.units import NEVER, UNBORN, Fragment, Incarnation, LearnerId, Round, Version

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess
    from gruppetto.chaos.syncer import SyncerProcess
    from gruppetto.chaos.world import World

__all__ = ["Watch"]


class Watch:
    """Sees everything that happens in one world. Raises at the first thing that is wrong; steers nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inside = Observer()
        self._values: dict[tuple[Fragment, Version], int] = {}
        """The one value of each version that was ever durable, or published."""
        self._seeded = False
        self._until: dict[int, int] = {}
        """By epoch: the last round that may be published."""
        self._lives: dict[int, SyncerProcess] = {}
        self._cursors: dict[int, int] = {}
        """One past the last batch of each slot in the durable weights that count."""
        self._welcomed: dict[tuple[int, LearnerId], tuple[str, Incarnation]] = {}
        self._epochs: dict[str, int] = {}
        self._newest: dict[LearnerId, dict[int, str]] = {}
        """The process that was last welcome under each name, by epoch."""
        self._resumed: dict[LearnerId, tuple[str, Incarnation]] = {}
        """Whose process was resumed with the whole run and not welcomed yet, and in which life it was saved."""
        self._asked_at: dict[str, float] = {}
        """When each checkpoint was asked for."""
        self._answer: Answer | None = None
        self._work: Work | None = None
        self._gates: dict[int, Gatekeeper] = {}
        """By epoch."""
        self._folds: dict[tuple[int, Fragment], int] = {}
        self._stopped: dict[int, tuple[Round, tuple[Version, ...]]] = {}
        """By epoch: what a life had published that was stopped in good order, if it had weights."""
        self._trained_to: dict[tuple[int, int], int] = {}
        """By epoch and slot: which batches learners have trained on for other shards alone."""
        self.owing = Owing()

    # ── the syncer ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def lives(self) -> list[SyncerProcess]:
        """All lives of the syncer, in order."""
        return list(self._lives.values())

    def claimed(self, syncer: SyncerProcess) -> None:
        life = self._lives.setdefault(syncer.epoch, syncer)
        demand(life is syncer, "one-authority-per-epoch", lambda: f"{syncer.epoch}")

    def new_core(self, syncer: SyncerProcess) -> None:
        """A life begins from what is durable. Whoever was welcome before has to say hello again."""
        self.inside.begins(syncer.epoch)
        commit = syncer.legacy.commit
        newest = self._gates[max(self._gates)] if self._gates else None
        self._gates[syncer.epoch] = Gatekeeper(commit.state if commit is not None else None, newest)
        promised = syncer.core.ledger.promised_total()
        demand(promised == 0, "books-match-weights", lambda: f"{promised} promised by a running merge that is gone")
        self._begins_where_it_was_stopped(syncer)
        self._cursors = _cursors_of(commit.contents) if commit is not None else {}
        self._until[syncer.epoch] = commit.state.round if commit is not None else 0

    def stopped(self, syncer: SyncerProcess) -> None:
        """It was told to stop, and says that everything is durable."""
        if syncer.core.versions:
            self._stopped[syncer.epoch] = (syncer.core.published_round, syncer.core.published)

    def _begins_where_it_was_stopped(self, syncer: SyncerProcess) -> None:
        left, legacy = self._stopped.pop(syncer.epoch - 1, None), syncer.legacy
        if left is None:
            return
        found = None if legacy.commit is None else (legacy.commit.state.round, legacy.commit.state.versions)
        fine = found == left and not legacy.unseen  # what became damaged on the disk since is another matter
        demand(fine, "a-stop-loses-nothing", lambda: f"{left} was published, {found} is there, {legacy.unseen} unseen")

    def stepped(self, syncer: SyncerProcess, event: SyncerEvent, actions: Sequence[SyncerAction]) -> None:
        core, now = syncer.core, self.world.engine.now
        self.inside.saw(core, event, actions)
        demand(core.wake_at is None or core.wake_at > now, "wakes-lie-ahead", lambda: f"{core.wake_at} at {now}")
        wrong = self._gates[syncer.epoch].saw(core, event if isinstance(event, Answer) else None, self._work, actions)
        if wrong is not None:
            raise BrokenWorldError(*wrong)
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Welcome | Begin | Announcement):
                told = action.message.round
                demand(told <= self._until[syncer.epoch], "durable-before-told", lambda a=action: f"{a}")
                if isinstance(action.message, Welcome):
                    self._welcome(syncer, action.to, action.session, action.message)
        if isinstance(event, TakeCheckpoint):
            self._asked_at[event.mark] = now
        if isinstance(event, Progress) and core.finished_early and event.epoch == core.epoch:
            member = core.members.current(event.learner, event.incarnation)
            if member is not None:
                key = (syncer.epoch, member.slot)
                self._trained_to[key] = max(self._trained_to.get(key, 0), event.cursor)
        if isinstance(event, Settle) and core.phase is Phase.FINISHED:
            demand(not self.world.goes_on_elsewhere, "the-rest-is-ridden", lambda: "books are closed")
            unsettled = core.ledger.open_total() + core.ledger.promised_total()
            demand(unsettled == 0, "settled", lambda: f"{core.ledger.accounts}, {core.ledger.promised_by}")

    def _welcome(self, syncer: SyncerProcess, to: LearnerId, session: str, welcome: Welcome) -> None:
        core = syncer.core
        if welcome.incarnation == UNBORN:
            demand(not self.world.goes_on_elsewhere, "the-rest-is-ridden", lambda: f"{to} is shown out")
            fine = core.is_over and welcome.finished and welcome.versions == core.versions and not welcome.seed
            demand(fine, "visitors-only-look", lambda: f"{to} got {welcome}")
            return
        self._welcomed[syncer.epoch, to] = (session, welcome.incarnation)
        self._newest.setdefault(to, {})[syncer.epoch] = session
        demand(not (welcome.seed and self._seeded), "seeded-once", lambda: f"{to}")
        merged = self._cursors.get(welcome.slot, 0) if syncer is self.world.syncer else 0
        demand(welcome.cursor >= merged, "cursors-are-durable", lambda: f"{to} starts at {welcome.cursor} < {merged}")
        if syncer.core.phase is Phase.FINISHED and self.world.goes_on_elsewhere:
            trained_to = self._trained_to.get((syncer.epoch, welcome.slot), 0)
            fine = welcome.begun and NEVER not in welcome.versions and welcome.cursor >= trained_to
            demand(fine, "the-rest-is-ridden", lambda: f"{to} got {welcome}, the slot was at {trained_to}")
        for donor in welcome.donors:
            giver = self.world.process_at(donor.address)
            fine = giver is not None and giver.name == donor.learner and session != giver.core.session
            fine = fine and giver is not None and len(giver.bases) == self.world.setting.num_fragments
            demand(fine, "donors-have-the-weights", lambda donor=donor: f"{donor} for {to}")
        was, saved_in = self._resumed.pop(to, (session, welcome.incarnation))
        # Where slots are scarce, a newcomer may have taken that of a learner who had not dialled yet.
        fine = was != session or saved_in == welcome.incarnation or self.world.setting.num_slots is not None
        demand(
            fine, "resumed-lives-go-on", lambda: f"{to} was saved in life {saved_in} and is in {welcome.incarnation}"
        )

    def heirs(self, process: LearnerProcess) -> set[str]:
        """The sessions that have been welcome under its name after another one, to whichever life of the syncer."""
        return {session for session in self._newest.get(process.name, {}).values() if session != process.core.session}

    def at_the_gate(self, syncer: SyncerProcess, answer: Answer, work: Work) -> None:
        self._answer, self._work = answer, work

    def folding(self, syncer: SyncerProcess, fold: Fold, work: Work) -> None:
        answer, p = self._answer, fold.fragment
        assert answer is not None
        life = self._welcomed.get((syncer.epoch, fold.learner))
        demand(
            answer.epoch == syncer.epoch and life == (work.session, answer.incarnation),
            "old-lives-are-fenced",
            lambda: f"{answer} is merged in epoch {syncer.epoch}, where {fold.learner} is {life}",
        )
        self._fits(work, syncer.published[p])
        demand(work.finite, "only-finite", lambda: f"{work}")
        self._folds[syncer.epoch, p] = self._folds.get((syncer.epoch, p), 0) + 1

    def _fits(self, work: Work, current: Content) -> None:
        oldest = current.version - (self.world.setting.sync_period if self.world.setting.stale == "accept" else 0)
        base = self._values.get((current.fragment, work.base_version))
        fits = work.base == current.number or (oldest <= work.base_version < current.version and base == work.base)
        demand(fits, "merged-onto-its-base", lambda: f"{work} into {current}")

    def outer_step(
        self, syncer: SyncerProcess, action: TakeOuterStep, parts: dict[Fragment, list[tuple[Work, int]]]
    ) -> None:
        due = self.world.plan.schedule.due(action.round)
        fine = set(action.fragments) <= set(due)
        demand(fine, "due-in-its-turn", lambda: f"{action.fragments} in round {action.round}, where {due} are due")
        degrade = self.world.setting.when_short == "degrade"
        quorum = 1 if degrade else self.world.setting.min_quorum
        for p in action.fragments:
            for work, _ in parts[p]:
                self._fits(work, syncer.published[p])  # it may have been folded long before
            folds = self._folds.pop((syncer.epoch, p), 0)
            fine = len(parts[p]) == folds >= quorum
            demand(fine, "every-fold-is-in", lambda p=p, n=folds: f"{len(parts[p])} of {n}, K = {quorum}")

    def merging(self, base: Content, parts: tuple[Work, ...]) -> None:
        """An outer step is about to make a new value of ``base``."""
        merged = set(base.batches)
        for work in parts:
            self.owing.merging(work, base)
            for batch in work.batches:
                key = (batch.slot, batch.number)
                demand(key not in merged, "batch-merged-once", lambda key=key: f"{key} again into {base}")
                merged.add(key)

    def published(self, syncer: SyncerProcess, content: Content) -> None:
        """A value can be pulled from now on."""
        self._register(content)

    def durable(self, syncer: SyncerProcess, commit: Commit) -> None:
        """A commit has reached the disk; nobody will look for it if its author has lost his authority."""
        self._seeded, self._until[syncer.epoch] = True, commit.until
        for content in commit.contents:
            self._register(content)
        books, merged = commit.state.ledger, sum(content.merged for content in commit.contents)
        demand(
            books.totals.merged == merged,
            "books-match-weights",
            lambda: f"{books.totals.merged} merged in the ledger, {merged} in the weights",
        )
        for name, consumed in books.consumed_by.items():
            trained = self.world.trained_by(name)
            demand(
                consumed <= trained,
                "books-match-weights",
                lambda name=name, c=consumed, t=trained: f"{name} consumed {c} and trained {t}",
            )
        named, keep = books.consumed_by.keys() - books.accounts.keys() - books.promised_by.keys(), self.world.setting
        demand(
            len(named) <= keep.departed_named,
            "departed-are-one-sum",
            lambda: f"{sorted(named)} have left, {keep.departed_named} are named",
        )
        cursors, merged_to = dict(commit.state.cursors), _cursors_of(commit.contents)
        for slot, last in merged_to.items():
            demand(
                cursors.get(slot, 0) >= last,
                "cursors-are-durable",
                lambda slot=slot: f"slot {slot}: {cursors}, merged {merged_to}",
            )
        if self.world.disk.has_authority(syncer.epoch):
            self._cursors = merged_to

    def _register(self, content: Content) -> None:
        key = (content.fragment, content.version)
        known = self._values.setdefault(key, content.number)
        demand(known == content.number, "one-value-per-version", lambda: f"{key}")

    # ── learners ─────────────────────────────────────────────────────────────────────────────────────────────────

    def welcomed(self, process: LearnerProcess, welcome: Welcome) -> None:
        newest = self._epochs.get(process.core.session, 0)
        demand(welcome.epoch >= newest, "epochs-only-grow", lambda: f"{process.name}: {welcome.epoch} < {newest}")
        self._epochs[process.core.session] = welcome.epoch
        if welcome.epoch > process.astray_until:
            process.astray_until = 0

    def applied(self, process: LearnerProcess, action: Apply, arrived: Content, base: Content | None) -> None:
        if process.astray_until:
            return
        key = (action.fragment, action.version)
        again = action.fragment in process.holdings.of_old_life  # a new life applies its bases once more
        is_news = base is None or arrived.version >= base.version + (0 if again else 1)
        fine = self._values.get(key) == arrived.number and is_news
        demand(fine, "durable-before-applied", lambda: f"{process.name} applies {arrived} over {base}")

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
        demand(fine, "answers-are-true", lambda: f"{answer} of {work} on {base}, slot {process.core.slot}")

    def begins(self, process: LearnerProcess) -> None:
        """The first step of a process is about to begin."""
        search = process.search
        # What another life of the syncer named may be lost by now.
        wanted = search.versions if search is not None and process.core.search_stands else ()
        held = [process.bases[p].version for p in sorted(process.bases)]
        fine = all(have >= want for have, want in zip(held, wanted, strict=bool(wanted)))
        demand(fine, "begins-up-to-date", lambda: f"{process.name} begins on {held}, its Welcome named {wanted}")

    def parts(self, process: LearnerProcess) -> None:
        """It has had notice, and leaves before its time is up."""
        if process.core.linked and self.world.setting.rounds is None:
            kept_back = process.holdings.kept_back(process.transfers.coming())
            demand(not kept_back, "notice-is-used", lambda: f"{process.name} takes its work on {kept_back} with it")

    def ends(self, process: LearnerProcess) -> None:
        """The run is over for it: all that it has waited for is in its model."""
        if process.core.incarnation == UNBORN and process.core.linked and not process.backlog.downloads:
            assert process.contact.at is not None
            newest, held = (
                process.contact.at.core.versions,
                tuple(process.bases[p].version for p in sorted(process.bases)),
            )
            demand(held == newest, "visitors-only-look", lambda: f"{process.name} leaves with {held} of {newest}")

    def step_done(self, process: LearnerProcess, stamp: int) -> None:
        """``stamp`` is what was known when the step began; only a Welcome may lift it meanwhile."""
        clock = process.core.clock
        fine = clock <= max(stamp, process.welcomed_at)
        demand(fine, "stamped-at-start", lambda: f"{process.name}: {clock} > {stamp}")

    def end(self) -> None:
        """Nobody stands still, and no checkpoint hangs."""
        syncer = self.world.syncer
        mark = syncer.core.open_mark if syncer is not None and not syncer.over else None
        patience_s = self.world.setting.checkpoint_timeout_s
        hangs = mark is not None and self.world.engine.now > self._asked_at.get(mark.mark, 0.0) + patience_s
        demand(not hangs, "checkpoints-end", lambda: f"{mark} at {self.world.engine.now}")
        for process in self.world.processes:
            here = process.alive and not process.left and not process.paused
            idle = process.begun and here and not process.parting
            done = process.core.finished and not self.world.goes_on_elsewhere
            if idle and not process.stepping and not process.held and not done:
                raise BrokenWorldError("never-waits", f"{process.name} at {self.world.engine.now}")

    # ── checkpoints of the whole run ─────────────────────────────────────────────────────────────────────────────

    def truth(self, syncer: SyncerProcess) -> Truth:
        """All that is known now."""
        newest = {name: dict(by_epoch) for name, by_epoch in self._newest.items()}
        return Truth(values=dict(self._values), newest=newest, gate=deepcopy(self._gates[syncer.epoch]))

    def cut(self, syncer: SyncerProcess, action: Checkpoint) -> None:
        """The syncer records its part."""
        state, commit = action.state, self.world.disk.commit
        contents = [syncer.published[p] for p in sorted(syncer.published)]
        merged = sum(content.merged for content in contents)
        cursors = dict(state.cursors)
        fine = (
            state.versions == tuple(content.version for content in contents)
            and state.ledger.totals.merged == merged
            and all(cursors.get(slot, 0) >= last for slot, last in _cursors_of(contents).items())
        )
        if commit is not None and commit.epoch == syncer.epoch:
            fine = fine and state.versions == commit.state.versions  # a round in which nothing changed needs no commit
        demand(fine, "cut-is-consistent", lambda: f"{state} is recorded while {merged} are in {contents}")

    def closed(self, action: CheckpointClosed) -> None:
        """Every part that counts is one that was saved."""
        for name, life, _ in action.parts:
            saved = (action.mark, name, life) in self.world.parts
            demand(saved, "cut-is-consistent", lambda n=name: f"{n} has no part in {action}")

    def cut_closed(self, cut: Cut) -> None:
        """All parts are there."""
        newest, merged = {c.fragment: c.version for c in cut.contents}, _cursors_of(cut.contents)
        books = cut.state.ledger.accounts
        for (name, _), part in cut.parts.items():
            saved, state = part.checkpoint, part.checkpoint.state
            fine = (
                all(version <= newest[Fragment(p)] for p, (version, _, _) in enumerate(state.fragments))
                and all(cut.truth.values.get((p, c.version)) == c.number for p, c in saved.bases.items())
                and merged.get(state.slot, 0) <= state.cursor
                and (name not in books or books[name].tokens <= state.tokens)
            )
            demand(fine, "cut-is-consistent", lambda n=name, s=saved: f"{n} {s} beside {cut.state}")

    def roll_back(self, cut: Cut) -> None:
        """The whole world goes on from ``cut``: what came after it never was. Epochs are never used again."""
        self._values = dict(cut.truth.values)
        self._newest = {name: dict(by_epoch) for name, by_epoch in cut.truth.newest.items()}
        self._gates[max(self._gates)] = deepcopy(cut.truth.gate)
        self._folds, self._resumed, self._stopped = {}, {}, {}
        self.inside = Observer(cut.state.versions)

    def is_of_this_run(self, process: LearnerProcess) -> bool:
        """Every base that it holds was published here, and not in a history that the run has gone back from."""
        return all(self._values.get((p, base.version)) == base.number for p, base in process.bases.items())

    def resumed(self, process: LearnerProcess, life: Incarnation) -> None:
        """``process`` goes on in ``life``; if it is the first under its name to come back, the syncer knows it."""
        self._resumed[process.name] = (process.core.session, life)


def _cursors_of(contents: Iterable[Content]) -> dict[int, int]:
    """One past the last batch of each slot in these weights."""
    cursors: dict[int, int] = {}
    for content in contents:
        for slot, end in content.cursors:
            cursors[slot] = max(cursors.get(slot, 0), end)
    return cursors
