"""What the syncer's core decides, done to what would be tensors: by two workers, one that merges, one that writes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from gruppetto.chaos.cut import Cut, Truth
from gruppetto.chaos.disk import Commit
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import (
    Checkpoint,
    CheckpointClosed,
    Fold,
    Persist,
    Publish,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.events import CheckpointRecorded, Folded, OuterStepped, Published
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Fragment, Version

if TYPE_CHECKING:
    from gruppetto.chaos.syncer import SyncerProcess

__all__ = ["Hands"]


class Hands:
    """Of one life of the syncer. ``published``: what is on offer, by fragment."""

    def __init__(self, process: SyncerProcess, published: dict[Fragment, Content]) -> None:
        self._process, self._world = process, process.world
        self.published = published
        self.at_the_door: tuple[Work, int] | None = None
        """The contribution that the core is just judging, and the tokens that it says it holds."""
        self._pending: dict[Fragment, Content] = {}
        """Values that were made, and are not published yet."""
        self._merging: dict[Fragment, list[tuple[Work, int]]] = {}
        """The running merges: what was folded, and the tokens that it counts for."""
        self._recorded: tuple[SyncerState, tuple[Content, ...], Truth] | None = None
        """The syncer's part of the checkpoint that is being taken."""
        self._rng = random.Random(f"{self._world.plan.seed} syncer {process.epoch}")
        self._merger_free_at = self._disk_free_at = 0.0

    def take_seed(self) -> None:
        """The initial weights are here."""
        for p in map(Fragment, range(self._world.setting.num_fragments)):
            self._pending[p] = self._world.seed_content(p)

    def carry_out(self, action: SyncerAction) -> None:
        """What takes time ends with an event that is fed to the core, unless its life ends before."""
        match action:
            case Fold():
                self._fold(action)
            case TakeOuterStep():
                self._take_outer_step(action)
            case Persist():
                self._persist(action)
            case Publish():
                self._publish(action)
            case Checkpoint():
                self._record(action)
            case CheckpointClosed(why=""):
                self._keep(action)
            case _:
                pass  # for the record, or bytes that nobody keeps

    def _fold(self, action: Fold) -> None:
        arrived = self.at_the_door
        assert arrived is not None, "a contribution is decided on with its bytes at hand"

        def fold() -> None:
            self._merging.setdefault(action.fragment, []).append(arrived)
            cosine = arrived[0].cosine
            self._process.feed(
                Folded(round=action.round, fragment=action.fragment, learner=action.learner, cosine=cosine)
            )

        self._world.watch.folding(self._process, action, arrived[0])
        self._merge(self._world.plan.costs.fold_s, fold)

    def _take_outer_step(self, action: TakeOuterStep) -> None:
        diverged = action.fragments[:1] if self._world.fate.takes_divergence() else ()
        parts = {p: self._merging.pop(p, []) for p in action.fragments}
        for p in action.fragments:
            if p not in diverged:
                works, booked = tuple(work for work, _ in parts[p]), sum(tokens for _, tokens in parts[p])
                self._pending[p] = self._after(self.published[p], Version(action.round), works, booked)
        self._world.watch.outer_step(self._process, action, parts)
        stepped = OuterStepped(round=action.round, not_finite=diverged)
        self._merge(self._world.plan.costs.merge_s, lambda: self._process.feed(stepped))

    def _after(self, base: Content, version: Version, parts: tuple[Work, ...] = (), booked: int = 0) -> Content:
        self._world.watch.merging(base, parts)
        return base.then(self._world.new_number(), version, parts, booked)

    def _persist(self, action: Persist) -> None:
        for p in action.fragments:
            version = action.state.versions[p]
            if p not in self._pending and self.published[p].version != version:
                self._pending[p] = self._after(self.published[p], version)  # the same value under a new name
        contents = {**self.published, **{p: self._pending[p] for p in action.fragments if p in self._pending}}
        commit = Commit(
            epoch=self._process.epoch, state=action.state, contents=tuple(contents[p] for p in sorted(contents))
        )

        def done() -> None:
            if not self._process.has_authority():
                return
            if not self._world.disk.write(self._world.engine.now, commit):
                self._process.persist_failed(action.round)
                return
            self._world.watch.durable(self._process, commit)
            if self._process.dies_at("Persist+"):
                return
            self._process.persisted(action.round)

        self._process.off_guard = False  # it lasts for one commit, and what that allows to be published
        if self._process.has_authority():
            self._disk_free_at = self._queue(self._disk_free_at, self._world.plan.costs.persist_s, done)
            self._world.fate.commit_begun(self._process)

    def _publish(self, action: Publish) -> None:
        news = action.message
        if not self._process.has_authority():
            return
        for p, _ in news.versions:
            self.published[p] = self._pending.pop(p)
            self._world.watch.published(self._process, self.published[p])
        if self._process.dies_at("Publish+", lambda: self._process.switchboard.announce(action.to[::2], news)):
            return
        self._process.switchboard.announce(action.to, news)
        done = Published(round=news.round)

        def completed() -> None:
            if not self._process.dies_at("Published"):
                self._process.feed(done)

        self._world.engine.after(self._world.plan.costs.publish_s, lambda: completed() if self._process.alive else None)

    def _record(self, action: Checkpoint) -> None:
        contents = tuple(self.published[p] for p in sorted(self.published))
        self._recorded = action.state, contents, self._world.watch.truth(self._process)
        self._world.watch.cut(self._process, action)

        def done() -> None:
            if not self._process.has_authority():
                return
            failing = self._world.engine.now < self._world.disk.failing_until
            self._process.feed(CheckpointRecorded(mark=action.mark, why="the disk is full" if failing else ""))

        self._disk_free_at = self._queue(self._disk_free_at, self._world.plan.costs.persist_s, done)

    def _keep(self, action: CheckpointClosed) -> None:
        """Write its manifest: from then on the checkpoint counts."""
        assert self._recorded is not None
        self._world.watch.closed(action)
        (state, contents, truth), self._recorded = self._recorded, None
        parts = {(name, life): self._world.parts[action.mark, name, life] for name, life, _ in action.parts}
        cut = Cut(mark=action.mark, state=state, contents=contents, parts=parts, truth=truth)
        self._world.watch.cut_closed(cut)

        def done() -> None:
            if self._process.has_authority() and self._world.engine.now >= self._world.disk.failing_until:
                self._world.disk.newest_cut = cut

        self._disk_free_at = self._queue(self._disk_free_at, self._world.plan.costs.persist_s, done)

    def _merge(self, cost_s: float, do: Callable[[], None]) -> None:
        self._merger_free_at = self._queue(self._merger_free_at, cost_s, do)

    def _queue(self, free_at: float, cost_s: float, do: Callable[[], None]) -> float:
        """A worker does one thing after another; returns when it is free again."""
        cost_s *= self._rng.uniform(0.5, 1.5) * self._world.fate.slowness
        free_at = max(free_at, self._world.engine.now) + cost_s
        self._world.engine.at(free_at, lambda: do() if self._process.alive else None)
        return free_at
