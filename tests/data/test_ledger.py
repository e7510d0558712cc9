"""The fuzzer's worlds, with learners that read their data through slots: crashes, takeovers, partitions, lives that end
within a step. Its invariants say what must hold of the data: no batch is merged twice, no slot is handed out again from
before a merged one, and every contribution is made of the batches that its cursor says, of the learner's own slot.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest

import gruppetto.data
from gruppetto.attach.counting import StepCounts
from gruppetto.attach.view import Place
from gruppetto.chaos import draw_plan, live
from gruppetto.chaos.learner import LearnerProcess
from gruppetto.chaos.truth import Batch
from gruppetto.data.slots import Slots
from gruppetto.protocol.events import LearnerEvent, StepDone
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Welcome
from gruppetto.protocol.units import UNBORN

SLOTS = 1_000
"""More than any world has."""
AHEAD = 3
Item = tuple[int, int]


def numbered(slot: int, num_slots: int) -> Iterator[Item]:
    return ((slot, number) for number in itertools.count())


class CoreAsRider:
    """What :class:`gruppetto.Learner` says of itself, without one."""

    def __init__(self, core: LearnerCore) -> None:
        self.core = core
        self.counts = StepCounts(core, tokens_per_step=1, cursor=None)

    @property
    def place(self) -> Place:
        return Place(incarnation=self.core.incarnation, slot=self.core.slot, cursor=self.core.cursor)

    def took(self, cursor: int, *, incarnation: int) -> None:
        self.counts.tell(cursor, incarnation)


class BelievesWhatItWasTold(CoreAsRider):
    """Wrong: takes for the cursor of the slot that it has what was said of the one that it had."""

    def took(self, cursor: int, *, incarnation: int) -> None:
        self.counts.tell(cursor, UNBORN)


class NeverLooksUp(CoreAsRider):
    """Wrong: goes on in the slot with which it began."""

    def __init__(self, core: LearnerCore) -> None:
        super().__init__(core)
        self.began: Place | None = None

    @property
    def place(self) -> Place:
        if self.began is None:
            self.began = super().place
        return self.began

    def took(self, cursor: int, *, incarnation: int) -> None:
        self.counts.tell(cursor, self.core.incarnation)


class Reading(LearnerProcess):
    """Takes its batches where a loop would: before a step. What it has taken is what it trains on."""

    rider: type[CoreAsRider] = CoreAsRider
    begun_within: ClassVar[list[int]] = []
    """The cursors of all lives that began in the middle of a slot."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._rider = self.rider(self.core)
        self._data: Slots[Item] = gruppetto.data.slots(numbered, num_slots=SLOTS)
        self._item: Item | None = None
        self._due = self.core.slot, self.core.cursor
        """The first batch that no merged contribution has used when this life began, and from then on the next."""
        self._items = self._begin()

    def _begin(self) -> Iterator[Item]:
        return self._data.of(self._rider)

    def _take(self) -> Item:
        return next(self._items)

    def _start_step(self) -> None:
        super()._start_step()
        if self.stepping and self._item is None:
            self._item = self._take()
            assert self._item == self._due, "passed over, or taken again"
            self._due = self._item[0], self._item[1] + 1

    def _finish_step(self, batch: Batch, stamp: int) -> None:
        assert self._item is not None
        (slot, number), self._item = self._item, None
        super()._finish_step(Batch(slot, number, batch.tokens), stamp)

    def _feed(self, event: LearnerEvent) -> Any:
        if isinstance(event, Welcome) and self.core.is_newborn(event):
            self._due = event.slot, event.cursor
            self.begun_within += [event.cursor] if event.cursor else []
        if isinstance(event, StepDone):
            event = replace(event, cursor=self._rider.counts.take_cursor())
        return super()._feed(event)


class FetchingAhead(Reading):
    """As behind a loader with batches in stock, in a trainer."""

    def _begin(self) -> Iterator[Item]:
        self._stock: list[Item] = []
        return iter(self._data.serve(self._rider))

    def _take(self) -> Item:
        if self._data.moved:
            self._stock, self._items = [], iter(self._data)
        while len(self._stock) < AHEAD:
            self._stock.append(next(self._items))
        return self._stock.pop(0)

    def _finish_step(self, batch: Batch, stamp: int) -> None:
        self._data.used(1)
        super()._finish_step(batch, stamp)


class NeverBeginsAnew(FetchingAhead):
    """Wrong: uses up what it has in stock, whosever it is."""

    def _take(self) -> Item:
        while len(self._stock) < AHEAD:
            self._stock.append(next(self._items))
        return self._stock.pop(0)


def swarm(monkeypatch: pytest.MonkeyPatch, process: type[Reading], seeds: range) -> Iterator[tuple[int, str]]:
    monkeypatch.setattr("gruppetto.chaos.launcher.LearnerProcess", process)
    for seed in seeds:
        outcome = live(draw_plan(seed))
        yield seed, outcome.broken and outcome.what


@pytest.mark.parametrize("process", [Reading, FetchingAhead])
def test_no_batch_is_merged_twice_and_none_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, process: type[Reading]
) -> None:
    process.begun_within.clear()
    for seed, broken in swarm(monkeypatch, process, range(50)):
        assert not broken, f"seed {seed}: {broken}"
    assert len(process.begun_within) > 20


@pytest.mark.parametrize(
    ("rider", "process", "within"),
    [(BelievesWhatItWasTold, Reading, 20), (NeverLooksUp, Reading, 20), (CoreAsRider, NeverBeginsAnew, 20)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_who_reads_wrongly_is_caught(
    monkeypatch: pytest.MonkeyPatch, rider: type[CoreAsRider], process: type[Reading], within: int
) -> None:
    wrong = type("Wrong", (process,), {"rider": rider})
    caught = next((broken for _, broken in swarm(monkeypatch, wrong, range(within)) if broken), "")
    assert caught.startswith(("answers-are-true", "batch-merged-once", "AssertionError: passed over")), caught
