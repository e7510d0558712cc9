"""Learners that give their state to those who begin, and newcomers that look for one; the ladder is the shipping one.

A donor and a newcomer talk to each other over both their roads, past the syncer. Either may die, stand still or be cut
off at any moment; what has come by then is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from gruppetto.chaos.record import Checkpoint
from gruppetto.chaos.truth import Content
from gruppetto.protocol.actions import Recover
from gruppetto.protocol.donors import Ladder, Rung, Source, covers
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import Fragment

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess

__all__ = ["Giver", "Search"]

CHUNKS = 3
"""Parts in which a state travels."""
STALL_S = 2.5
"""A newcomer leaves a donor of which nothing has come for so long."""
MAX_JOINERS = 1
"""At one donor, at a time. The real one takes two; here they would hardly ever meet."""
PATIENCE = 2
"""Boundaries at which a donor looks whether it has become new enough."""
PAUSE_S = 0.2
"""Before a busy donor is asked again."""


class Giver:
    """The donor's side of one process."""

    def __init__(self, process: LearnerProcess) -> None:
        self._process = process
        self._waiting: list[tuple[Search, int, int]] = []
        self.guests: set[str] = set()
        """Sessions of those who are being served."""

    def ask(self, search: Search, attempt: int) -> None:
        """A request has arrived."""
        if not self._process.plan.donates:
            return
        guest = search.process.core.session
        if guest not in self.guests and len(self.guests) >= MAX_JOINERS:
            search.hear(attempt, self._process, partial(search.busy, attempt))
            return
        self.guests.add(guest)
        self._waiting.append((search, attempt, PATIENCE))

    def at_boundary(self) -> None:
        """Between two steps: the one moment at which everything fits together."""
        process, waiting, self._waiting = self._process, self._waiting, []
        for search, attempt, patience in waiting:
            if covers([process.bases[p].version for p in sorted(process.bases)], search.versions):
                self._give(search, attempt, dict(process.bases), CHUNKS)
            elif patience > 1:
                self._waiting.append((search, attempt, patience - 1))
            else:
                self.guests.discard(search.process.core.session)
                search.hear(attempt, process, partial(search.failed, attempt))

    def _give(self, search: Search, attempt: int, cut: Mapping[Fragment, Content], left: int) -> None:
        """One part after another. A guest that has gone is forgotten after a while, as it asks for no more."""
        if left == 0 or not search.is_at(attempt):
            self.guests.discard(search.process.core.session)
            return
        done = left == 1
        search.hear(attempt, self._process, partial(search.comes, attempt, cut if done else None))
        self._process.later(self._process.plan.chunk_s, partial(self._give, search, attempt, cut, left - 1))


class Search:
    """The newcomer's side: from the best donor down to the syncer."""

    def __init__(self, process: LearnerProcess, wanted: Recover, own: Checkpoint | None) -> None:
        self.process, self.versions = process, wanted.versions
        self.ladder = Ladder(wanted.donors, checkpoint=own is not None)
        self.source: Source | None = None
        """Where the state has come from, once it has."""
        self.tried: list[str] = []
        self._own = own
        self._attempt = self._moved = 0

    def begin(self) -> None:
        self._try(self.ladder.rung)

    def is_at(self, attempt: int) -> bool:
        return attempt == self._attempt and self.source is None and self.process.present

    # ── what is heard of the donor ───────────────────────────────────────────────────────────────────────────────

    def hear(self, attempt: int, giver: LearnerProcess, say: partial[None]) -> None:
        """Something travels from the donor to the newcomer."""
        mine = self.process.road

        def pass_on() -> None:
            mine.carry(lambda: self.process.awake(say))

        if giver.alive:
            giver.road.carry(pass_on)

    def comes(self, attempt: int, cut: Mapping[Fragment, Content] | None) -> None:
        if self.is_at(attempt):
            self._moved += 1
            if cut is not None:
                self._end(Source.PEER, cut)

    def failed(self, attempt: int) -> None:
        if self.is_at(attempt):
            self._try(self.ladder.failed())

    def busy(self, attempt: int) -> None:
        if self.is_at(attempt):
            self._try(self.ladder.busy())

    # ── the next rung ────────────────────────────────────────────────────────────────────────────────────────────

    def _try(self, rung: Rung) -> None:
        self._attempt += 1
        match rung.source:
            case Source.PEER:
                assert rung.donor is not None
                self.tried.append(rung.donor.learner)
                pause_s = PAUSE_S if rung.again else 0.0
                self.process.later(pause_s, partial(self._ask, self._attempt, rung.donor))
            case Source.CHECKPOINT:
                assert self._own is not None
                stands = self.process.core.still_stands(self._own.state.epoch)
                self._end(Source.CHECKPOINT, self._own.bases if stands else {})
            case Source.SYNCER:
                self._end(Source.SYNCER, {})

    def _ask(self, attempt: int, donor: Donor) -> None:
        giver = self.process.world.process_at(donor.address)
        if giver is None or not self.is_at(attempt):
            self.failed(attempt)
            return
        asked = giver

        def arrive() -> None:
            asked.road.carry(lambda: asked.awake(lambda: asked.giver.ask(self, attempt)) if asked.present else None)

        self.process.road.carry(arrive)
        self._watch(attempt, self._moved)

    def _watch(self, attempt: int, moved: int) -> None:
        """The one deadline is on progress."""

        def look() -> None:
            if self.is_at(attempt):
                if self._moved == moved:
                    self.failed(attempt)
                else:
                    self._watch(attempt, self._moved)

        self.process.later(STALL_S, look)

    def _end(self, source: Source, found: Mapping[Fragment, Content]) -> None:
        self.source = source
        self.process.later(0.0, partial(self.process.recovered, found))
