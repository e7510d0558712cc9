"""What the core of a simulated learner wants done: to tensors by its hands, to the syncer over its road."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from gruppetto.protocol.actions import (
    Apply,
    DropRests,
    KeepRest,
    LearnerAction,
    Pull,
    Recover,
    SaveState,
    Seed,
    TakeSnapshot,
)
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import Arrived, Seeded, StateSaved, Taken
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import NEVER, Fragment, Version
from gruppetto.sim.giving import Kept, Search

if TYPE_CHECKING:
    from gruppetto.sim.learner import SimulatedLearner

__all__ = ["Deeds"]


class Deeds:
    """Carries out the actions of one learner. Without hands, for the tensors, only messages travel."""

    def __init__(self, learner: SimulatedLearner) -> None:
        self._learner, self._world, self._hands = learner, learner.world, learner.hands
        self._arrived: dict[Fragment, object] = {}
        """Values that wait for the next boundary."""

    def forget(self) -> None:
        """The process has ended, and what it had in memory is gone."""
        self._arrived.clear()

    def do(self, action: LearnerAction) -> None:
        match action:
            case Answer():
                self._contribute(action)
            case Seed():
                self._send_seed()
            case Pull():
                self._pull(action)
            case Apply():
                value = self._arrived.pop(action.fragment, None)
                if self._hands is not None:
                    self._hands.apply(action, value)
            case TakeSnapshot():
                if self._hands is not None:
                    self._hands.snapshot(action.fragments)
            case KeepRest():
                if self._hands is not None:
                    self._hands.keep_rest(action)
            case DropRests():
                if self._hands is not None:
                    self._hands.drop_rests()
            case Recover():
                assert self._world.recovers, "learners here begin with the run, or from the syncer"
                Search(self._learner, action).begin()
            case SaveState():
                name = self._learner.spec.name
                self._world.on_part(name, action)
                saved = StateSaved(mark=action.mark, ok=True, text=name)
                self._world.engine.after(0.0, lambda: self._learner.feed(saved))
            case _:
                self._learner.to_syncer(action)

    def adopt(self, source: Source, known: Kept | None, cut: object) -> tuple[Version, ...]:
        """Begin from what a search has found; the versions of its bases. Those that the run has gone beyond are of no
        use."""
        core = self._learner.core
        versions: tuple[Version, ...] = ()
        if known is not None and core.search_stands and (source is Source.PEER or core.still_stands(known.epoch)):
            versions = known.versions
        wanted = core.published
        useful = tuple(Fragment(p) for p, v in enumerate(versions) if v != NEVER and v >= wanted[p])
        if self._hands is not None:
            bases = self._hands.adopt(source, cut, useful)
            self._arrived.update(zip(useful, bases, strict=True))
        return versions

    def _contribute(self, answer: Answer) -> None:
        learner, syncer = self._learner, self._world.hands
        if self._hands is None or syncer is None:
            learner.to_syncer(answer)
            return
        contribution = self._hands.contribution(answer, math.prod(learner.factors))
        keeps_rest = self._hands.keeps_rest

        def arrive() -> None:
            # Looked at where it arrives: until then it may still be in the making.
            learner.contributions[answer.round, answer.fragment] = contribution
            finite, norms = syncer.is_finite(contribution), syncer.norms(contribution)
            self._world.tell_syncer(replace(answer, finite=finite, norms=norms))
            if keeps_rest:
                self._reply(answer)

        learner.up(arrive)

    def _reply(self, answer: Answer) -> None:
        """The syncer tells which contribution of this learner is in that round, if one is."""
        tokens = self._world.syncer.tokens_taken(answer)
        if tokens:
            taken = Taken(epoch=answer.epoch, round=answer.round, fragment=answer.fragment, tokens=tokens)
            self._learner.receive(taken)

    def _send_seed(self) -> None:
        weights = self._hands.seed() if self._hands is not None else None

        def arrive() -> None:
            value_norms: tuple[tuple[float, ...], ...] = ()
            if self._world.hands is not None:
                self._world.hands.seed(weights)
                value_norms = self._world.hands.value_norms()
            core = self._learner.core
            self._world.tell_syncer(Seeded(learner=core.learner, incarnation=core.incarnation, value_norms=value_norms))

        self._learner.up(arrive)

    def _pull(self, action: Pull) -> None:
        """A request travels up, the newest value travels down."""

        def serve() -> None:
            version = self._world.syncer.published[action.fragment]
            hands = self._world.hands
            value = hands.read(action.fragment, version) if hands is not None else None
            self._learner.down(lambda: arrive(version, value))

        def arrive(version: Version, value: object) -> None:
            self._arrived[action.fragment] = value
            self._learner.feed(Arrived(fragment=action.fragment, version=version))

        self._learner.up(serve)
