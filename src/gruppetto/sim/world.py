"""Learners and a syncer in virtual time: the shipping cores, driven by a heap instead of a network.

Processes die and come back, links break, and learners join and leave, as the specs and the mishaps say; what a learner
makes of it stands in :mod:`gruppetto.sim.learner`. What needs tensors is left to *hands* (:class:`LearnerHands`,
:class:`SyncerHands`). A simulation has none; virtual training plugs real ones in and changes nothing else.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from gruppetto.protocol.actions import (
    Apply,
    Checkpoint,
    CheckpointClosed,
    Drop,
    Fold,
    KeepRest,
    Persist,
    Publish,
    RoundClosed,
    SaveState,
    Send,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import (
    CheckpointRecorded,
    Folded,
    OuterStepped,
    Persisted,
    Published,
    SyncerEvent,
    Tick,
)
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Announcement, Answer
from gruppetto.protocol.round import Phase
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import LearnerState, SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import FIRST_EPOCH, Epoch, Fragment, Version
from gruppetto.sim.compute import Pace
from gruppetto.sim.engine import Engine
from gruppetto.sim.learner import SimulatedLearner
from gruppetto.sim.mishaps import SYNCER, Mishap
from gruppetto.sim.network import Link
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import core_header

__all__ = ["LearnerHands", "LearnerSpec", "SyncerCosts", "SyncerHands", "World"]

LAYOUT_HASH = "simulated"


class LearnerHands(Protocol):
    """What a learner does to tensors."""

    def start(self, slot: int, cursor: int) -> None:
        """An inner step begins, on what lies at ``cursor`` of ``slot``. Until it ends nobody touches the parameters."""

    def train(self, round: int) -> tuple[int, int]:
        """It ends, at the learning rate of ``round``; the tokens in it, and the next cursor."""

    def seed(self) -> object: ...
    def snapshot(self, fragments: Sequence[Fragment]) -> None: ...
    def contribution(self, answer: Answer, factor: float) -> object:
        """What it offers, ``factor`` times as large."""

    @property
    def keeps_rest(self) -> bool:
        """Its encoding leaves something unsaid, and it wants to know what was taken."""
        ...

    def keep_rest(self, action: KeepRest) -> None: ...
    def drop_rests(self) -> None: ...
    def apply(self, action: Apply, value: object) -> None: ...
    def begin(self) -> None:
        """A new process: first weights, a fresh optimizer, and on disk what it has kept."""

    def keep(self) -> None:
        """Save optimizer state and bases for the worst case."""

    def cut(self) -> object:
        """Optimizer state and bases of this boundary, for somebody else."""

    def adopt(self, source: Source, cut: object, bases: tuple[Fragment, ...]) -> tuple[object, ...]:
        """Begin from a peer's cut, from what was kept, or from nothing but Θ; the values of these bases, to be
        applied."""


class SyncerHands(Protocol):
    """What the syncer does to tensors."""

    def seed(self, weights: object) -> None: ...
    def value_norms(self) -> tuple[tuple[float, ...], ...]:
        """What the norms of the first contributions are compared with (:class:`Seeded`)."""

    def is_finite(self, contribution: object) -> bool: ...
    def norms(self, contribution: object) -> tuple[float, ...]: ...
    def fold(self, fold: Fold, contribution: object) -> float | None:
        """Fold it in; returns its cosine against the momentum."""

    def outer_step(self, action: TakeOuterStep) -> OuterStepped: ...
    def persist(self, action: Persist) -> None:
        """The newest values of these fragments are durable now."""

    def restart(self) -> None:
        """A new process: what is durable is all there is."""

    def publish(self, publish: Publish) -> None: ...
    def read(self, fragment: Fragment, version: Version) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """One learner: its pace, its link, and when it lives."""

    name: str
    pace: Pace
    link: Link = field(default_factory=Link)
    tokens_per_step: int = 1
    joins_at: float = 0.0
    dies_at: float | None = None
    """For good, without notice."""
    leaves_at: float | None = None
    """On notice: what it has is given before."""
    donates: bool = True
    """It gives its state to those who begin in mid-run."""
    keeps_every: int = 0
    """Rounds between two states that it saves for itself; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerCosts:
    """Seconds that the syncer's slow actions take."""

    fold_s: float = 0.0
    merge_s: float = 0.0
    persist_s: float = 0.0
    publish_s: float = 0.0


class World:
    """A syncer and its learners, from the first Hello on. The same seed gives the same history.

    ``make_learner`` and ``make_syncer`` exist for canaries: deliberately wrong cores that a test must catch. ``state``
    and ``learner_states`` are the parts of a checkpoint that the world goes on from as a whole. ``recovers``: who
    begins in mid-run looks for a state at donors; otherwise weights are all that it takes.
    """

    def __init__(
        self,
        setting: ProtocolSetting,
        specs: Sequence[LearnerSpec],
        *,
        seed: int,
        costs: SyncerCosts | None = None,
        run_id: str = "world",
        trace: TraceWriter | None = None,
        syncer_hands: SyncerHands | None = None,
        learner_hands: Callable[[LearnerSpec], LearnerHands] | None = None,
        make_learner: Callable[..., LearnerCore] = LearnerCore,
        make_syncer: Callable[..., SyncerCore] = SyncerCore,
        state: SyncerState | None = None,
        learner_states: Mapping[str, LearnerState] | None = None,
        mishaps: Sequence[Mishap] = (),
        recovers: bool = False,
    ) -> None:
        self.setting, self.recovers = setting, recovers
        self._run_id, self._make_syncer = run_id, make_syncer
        self.engine = Engine()
        self.costs = costs or SyncerCosts()
        self.trace = trace
        epoch = FIRST_EPOCH if state is None else Epoch(state.epoch + 1)
        self.syncer = make_syncer(setting, run_id=run_id, layout_hash=LAYOUT_HASH, epoch=epoch, state=state)
        self.hands = syncer_hands
        self.closed: list[tuple[float, RoundClosed]] = []
        """(time, verdict) of every closed round."""
        self.on_published: Callable[[Publish], None] = lambda publish: None
        """Called after every publication; for whoever watches."""
        self.on_part: Callable[[str, Checkpoint | SaveState], None] = lambda who, part: None
        """Called at the moment of the cut with every part of a checkpoint; ``who`` is a learner, or "syncer"."""
        self.on_checkpoint: Callable[[CheckpointClosed], None] = lambda closed: None
        self.is_up = True
        self.lives = 1
        """Of the syncer."""
        self._durable = state
        self._wakes_at: float | None = None
        self.learners = {
            spec.name: SimulatedLearner(
                spec,
                world=self,
                make_core=make_learner,
                hands=learner_hands(spec) if learner_hands else None,
                session=f"{seed}-{spec.name}",
                layout_hash=LAYOUT_HASH,
                rng=random.Random(f"{seed}/{spec.name}"),
            )
            for spec in sorted(specs, key=lambda s: s.name)
        }
        for name, saved in (learner_states or {}).items():
            self.learners[name].core.restore(saved, same_life=True)
        for mishap in mishaps:
            befall = self._crash if mishap.who == SYNCER else self.learners[mishap.who].suffer
            self.engine.at(mishap.at_s, partial(befall, mishap))

    def run(self, until: float) -> int:
        """Let it live until virtual time ``until`` (seconds) or the end of the run; returns the number of events."""
        return self.engine.run(until)

    # ── the syncer's shell ───────────────────────────────────────────────────────────────────────────────────────

    def note(self, who: str, kind: str, **fields: object) -> None:
        """For the trace, if there is one."""
        if self.trace is not None:
            self.trace.note(self.engine.now, who, kind, **fields)

    def tell_syncer(self, event: SyncerEvent) -> None:
        """Feed the syncer, if it is up."""
        if not self.is_up:
            return
        now = self.engine.now
        actions = self.syncer.step(now, event)
        if self.trace is not None:
            self.trace.event(now, "syncer", event)
            self.trace.actions(now, "syncer", actions)
        for action in actions:
            self._perform(action)
        self._plan_wake()

    def _perform(self, action: SyncerAction) -> None:
        match action:
            case Send(to=to, message=message):
                self.learners[to].receive(message)
            case Fold():
                learner = self.learners[action.learner]
                contribution = learner.contributions.pop((action.round, action.fragment), None)
                cosine = self.hands.fold(action, contribution) if self.hands is not None else None
                done = Folded(round=action.round, fragment=action.fragment, learner=action.learner, cosine=cosine)
                self._complete(self.costs.fold_s, done)
            case Drop():
                self.learners[action.learner].contributions.pop((action.round, action.fragment), None)
            case TakeOuterStep():
                stepped = OuterStepped(round=action.round) if self.hands is None else self.hands.outer_step(action)
                self._complete(self.costs.merge_s, stepped)
            case Persist():
                self.engine.after(self.costs.persist_s, partial(self._persisted, self.lives, action))
            case Publish():
                if self.hands is not None:
                    self.hands.publish(action)
                for name in action.to:
                    self.learners[name].receive(action.message)
                self._complete(self.costs.publish_s, Published(round=action.message.round))
                self.on_published(action)
                if action.message.finished:
                    self.engine.after(self.costs.publish_s, self.engine.stop)
            case RoundClosed():
                self.closed.append((self.engine.now, action))
            case Checkpoint():
                self.on_part("syncer", action)
                self._complete(self.costs.persist_s, CheckpointRecorded(mark=action.mark))
            case CheckpointClosed():
                self.on_checkpoint(action)
            case _:
                pass  # for the record only

    def _complete(self, cost_s: float, event: SyncerEvent) -> None:
        self.engine.after(cost_s, partial(self._completed, self.lives, event))

    def _completed(self, life: int, event: SyncerEvent) -> None:
        if life == self.lives:
            self.tell_syncer(event)

    def _persisted(self, life: int, action: Persist) -> None:
        if life != self.lives or not self.is_up:
            return
        self._durable = action.state
        if self.hands is not None:
            self.hands.persist(action)
        self.tell_syncer(Persisted(round=action.round))

    def _plan_wake(self) -> None:
        """Only one pending wake counts: an earlier one replaces it, a later one is asked for when it fires."""
        wake = self.syncer.wake_at
        if wake is None or (self._wakes_at is not None and self._wakes_at <= wake):
            return
        self._wakes_at = wake
        self.engine.at(wake, lambda: self._wake(wake))

    def _wake(self, planned: float) -> None:
        if planned == self._wakes_at:
            self._wakes_at = None
            self.tell_syncer(Tick())

    # ── its lives ────────────────────────────────────────────────────────────────────────────────────────────────

    def _crash(self, mishap: Mishap) -> None:
        if not self.is_up:
            return
        self.note(SYNCER, "died", learner=SYNCER, cause="SIGKILL", wall_s=self.engine.now)
        self.is_up, self._wakes_at = False, None
        self.lives += 1
        for learner in self.learners.values():
            learner.syncer_died()
        if mishap.lasts_s < math.inf:
            self.engine.after(mishap.lasts_s, self._restart)

    def _restart(self) -> None:
        seen, state = self.syncer.published_round, self._durable
        made_of = {"run_id": self._run_id, "layout_hash": LAYOUT_HASH, "epoch": Epoch(self.syncer.epoch + 1)}
        self.syncer = self._make_syncer(self.setting, **made_of, state=state)
        self.is_up = True
        if self.trace is not None:
            # Its records tell the time of the whole world: its clock stood at 0 when that began.
            self.trace.header({"started_at": 0.0, **core_header(self.setting, **made_of, state=state)})  # type: ignore[arg-type]
        if self.hands is not None:
            self.hands.restart()
        for learner in self.learners.values():
            learner.dial()
        if self.syncer.published_round > seen:
            # It died between making a round durable and saying so.
            finished = self.syncer.phase is Phase.FINISHED
            epoch, round = self.syncer.epoch, self.syncer.published_round
            news = Announcement(epoch=epoch, round=round, versions=(), finished=finished)
            self.on_published(Publish(to=(), message=news))
            if finished:
                self.engine.stop()
