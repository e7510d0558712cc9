"""The hands of a learner's core: what it decides is carried out on model, network and disk, in its order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from gruppetto.attach.holdings import Holdings
from gruppetto.errors import GruppettoError
from gruppetto.protocol.actions import Apply, LearnerAction, SaveState, TakeSnapshot
from gruppetto.protocol.events import Boundary, LearnerEvent, Leaving, StateSaved, StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.state import LearnerState
from gruppetto.runtime.client import LearnerClient

__all__ = ["Hands"]

log = logging.getLogger("gruppetto.learner")


class Hands:
    """For the training thread; the lock is held by whoever calls, unless said otherwise.

    ``save`` saves this learner's part of a checkpoint with this mark, and returns where, or a future of that; None if
    it saves none.
    """

    def __init__(
        self,
        core: LearnerCore,
        client: LearnerClient,
        holdings: Holdings,
        save: Callable[[str], str | Path | Future[str]] | None,
    ) -> None:
        self.core, self.client, self.holdings = core, client, holdings
        self.apply_s = self.snapshot_s = 0.0
        self.cut: LearnerState | None = None
        """While a part is being saved: the core as of the cut."""
        self.kept: tuple[str, ...] = ()
        """... and the older checkpoints whose parts are still needed."""
        self.saving = 0
        """Parts that are on their way to the disk."""
        self._save = save
        self.beside: tuple[Hands, ...] = ()
        """Those of the cores for the other shards of the run, if several serve it: each has its own rounds."""

    @property
    def everybody(self) -> tuple[Hands, ...]:
        """These, and those for the other shards."""
        return (self, *self.beside)

    def feed(self, event: LearnerEvent) -> None:
        """Take one event to the core and carry out what it decides; of what the loop does, all shards' cores hear."""
        self.carry_out(self.decide(event))
        if isinstance(event, StepStarted | StepDone | Boundary | Leaving):
            for other in self.beside:
                other.feed(event)

    @property
    def wants_boundary(self) -> bool:
        """There is something to do at the next boundary."""
        return any(each.core.wants_boundary for each in self.everybody)

    @property
    def finished(self) -> bool:
        """All shards have reached the last round."""
        return all(each.core.finished for each in self.everybody)

    @property
    def newest_round(self) -> int:
        """The newest round of any shard. One that was away is behind, and holds nobody up."""
        return max(each.core.newest_round for each in self.everybody)

    @property
    def run_ahead(self) -> int:
        """Steps past the newest round of the shard that is furthest: a dead one stops nobody."""
        return min(each.core.run_ahead for each in self.everybody)

    def is_too_far(self, most: int) -> bool:
        """More than so many, and no shard waits for another step."""
        return all(each.core.is_too_far(most) for each in self.everybody)

    @property
    def failure(self) -> GruppettoError | None:
        """Of any of the links."""
        return next((each.client.failure for each in self.everybody if each.client.failure is not None), None)

    def before_write(self) -> None:
        """The optimizer is about to write to the parameters."""
        for each in self.everybody:
            each.holdings.before_write()

    def decide(self, event: LearnerEvent) -> list[LearnerAction]:
        """Take one event to the core; what comes of it is to be carried out before anything else happens."""
        return self.core.step(self.client.clock.now(), event)

    def carry_out(self, actions: Sequence[LearnerAction], *, told: bool = False) -> None:
        """Do what the core has decided. ``told``: the other ranks of this learner know of it already."""
        now = self.client.clock.now
        for_network: list[LearnerAction] = []
        for action in actions:
            match action:
                case Apply():
                    before = now()
                    self.holdings.apply(action)
                    self.apply_s += now() - before
                case TakeSnapshot():
                    before = now()
                    self.holdings.take_snapshots(action.fragments)
                    self.snapshot_s += now() - before
                case SaveState():
                    self._save_part(action)
                case _:
                    for_network.append(action)
        self.client.perform(for_network, told=told)

    # ── this learner's part of a checkpoint ──────────────────────────────────────────────────────────────────────

    def _save_part(self, action: SaveState) -> None:
        """Have it saved, as everything is now."""
        self.saving += 1
        if self._save is None:
            self._part_saved(action.mark, ok=False, text="it saves no parts: it was attached without on_checkpoint")
            return
        self.cut, self.kept = action.state, action.kept
        try:
            where = self._save(action.mark)
        except Exception as wrong:
            log.warning("%s: no part of checkpoint %s: %s", self.core.learner, action.mark, wrong)
            self._part_saved(action.mark, ok=False, text=f"{type(wrong).__name__}: {wrong}")
            return
        finally:
            self.cut, self.kept = None, ()
        if isinstance(where, Future):
            where.add_done_callback(lambda written: self._part_written(action.mark, written))
        else:
            self._part_saved(action.mark, ok=True, text=str(where))

    def _part_written(self, mark: str, written: Future[str]) -> None:
        """In whatever thread has written it."""
        wrong = None if written.cancelled() else written.exception()
        with self.client.news:
            if wrong is not None or written.cancelled():
                log.warning("%s: no part of checkpoint %s: %s", self.core.learner, mark, wrong or "cancelled")
                self._part_saved(mark, ok=False, text=f"{type(wrong).__name__}: {wrong}" if wrong else "cancelled")
            else:
                self._part_saved(mark, ok=True, text=str(written.result()))

    def _part_saved(self, mark: str, *, ok: bool, text: str) -> None:
        self.saving -= 1
        self.client.perform(self.decide(StateSaved(mark=mark, ok=ok, text=text)))
        self.client.news.notify_all()
