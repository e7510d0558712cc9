"""How a process that begins in mid-run comes to a state, in virtual time: the shipping ladder, donors at boundaries.

A request and a state travel over both their links. A donor that dies, hangs or is not new enough is left for the next
rung; one that dies breaks its connections, so that its guests need not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gruppetto.protocol.actions import Recover
from gruppetto.protocol.donors import Ladder, Rung, Source, covers
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import Epoch, Version

if TYPE_CHECKING:
    from gruppetto.sim.learner import SimulatedLearner

__all__ = ["Giver", "Kept", "Search"]

MAX_GUESTS = 2
"""At one donor, at a time; the others hear that it is busy."""
PATIENCE = 2
"""Boundaries at which a donor looks whether it has become new enough."""
PAUSE_S = 0.5
"""Before a busy donor is asked again."""
STALL_S = 30.0
"""A donor of which nothing has come for so long is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a learner knows of a state that it, or a donor, has copied: the versions of its bases, and who published
    them."""

    versions: tuple[Version, ...]
    epoch: Epoch


class Giver:
    """The donor's side of one life."""

    def __init__(self, learner: SimulatedLearner) -> None:
        self._learner = learner
        self._waiting: list[tuple[Search, int, int]] = []

    def ask(self, search: Search, attempt: int) -> None:
        """A request has arrived."""
        if len(self._waiting) >= MAX_GUESTS:
            search.hears(self._learner, lambda: search.busy(attempt))
            return
        self._waiting.append((search, attempt, PATIENCE))

    def at_boundary(self) -> None:
        """Between two steps everything fits together."""
        waiting, self._waiting = self._waiting, []
        for search, attempt, patience in waiting:
            if covers(self._learner.core.held, search.versions):
                cut = self._learner.hands.cut() if self._learner.hands is not None else None
                known = Kept(versions=self._learner.core.held, epoch=self._learner.core.epoch)
                search.hears(self._learner, _came(search, attempt, known, cut))
            elif patience > 1:
                self._waiting.append((search, attempt, patience - 1))
            else:
                search.hears(self._learner, _failed(search, attempt))

    def end(self) -> None:
        """The donor is dead."""
        for search, attempt, _ in self._waiting:
            search.hears(self._learner, _failed(search, attempt))
        self._waiting.clear()


def _came(search: Search, attempt: int, known: Kept, cut: object) -> Callable[[], None]:
    return lambda: search.came(attempt, known, cut)


def _failed(search: Search, attempt: int) -> Callable[[], None]:
    return lambda: search.failed(attempt)


class Search:
    """The newcomer's side, from the best donor down to the syncer."""

    def __init__(self, learner: SimulatedLearner, wanted: Recover) -> None:
        self.versions = wanted.versions
        self._learner, self._life = learner, learner.lives
        self._ladder = Ladder(wanted.donors, checkpoint=learner.kept is not None)
        self._attempt = 0
        self._donor = ""
        self._began_s = learner.world.engine.now

    def begin(self) -> None:
        self._try(self._ladder.rung)

    def hears(self, donor: SimulatedLearner, say: Callable[[], None]) -> None:
        """Something travels from the donor to the newcomer."""
        travel_s = donor.road.latency_s + self._learner.road.latency_s
        self._learner.world.engine.after(travel_s, lambda: self._learner.awake(self._life, say))

    def came(self, attempt: int, known: Kept, cut: object) -> None:
        if attempt == self._attempt:
            self._end(Source.PEER, known, cut)

    def failed(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try(self._ladder.failed())

    def busy(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try(self._ladder.busy())

    def _try(self, rung: Rung) -> None:
        self._attempt += 1
        attempt, engine = self._attempt, self._learner.world.engine
        match rung.source:
            case Source.PEER:
                assert rung.donor is not None
                donor = rung.donor
                pause_s = PAUSE_S if rung.again else 0.0
                engine.after(pause_s, lambda: self._learner.awake(self._life, lambda: self._ask(attempt, donor)))
            case Source.CHECKPOINT:
                self._end(Source.CHECKPOINT, self._learner.kept, None)
            case Source.SYNCER:
                self._end(Source.SYNCER, None, None)

    def _ask(self, attempt: int, donor: Donor) -> None:
        self._donor = donor.learner
        giver = self._learner.world.learners[donor.learner]
        engine = self._learner.world.engine

        def arrive() -> None:
            if giver.alive and giver.core.donates_at == donor.address:
                giver.awake(giver.lives, lambda: giver.giver.ask(self, attempt))
            else:
                self.hears(giver, lambda: self.failed(attempt))

        engine.after(self._learner.road.latency_s + giver.road.latency_s, arrive)
        engine.after(STALL_S, lambda: self._learner.awake(self._life, lambda: self.failed(attempt)))

    def _end(self, source: Source, known: Kept | None, cut: object) -> None:
        self._attempt += 1  # whatever comes now comes too late
        donor = self._donor if source is Source.PEER else ""
        self._learner.recovered(source, known, cut, donor=donor, took_s=self._learner.world.engine.now - self._began_s)
