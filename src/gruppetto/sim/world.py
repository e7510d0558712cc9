"""Learners and a syncer in virtual time: the shipping cores, driven by a heap instead of a network.

What needs tensors is left to *hands* (:class:`LearnerHands`, :class:`SyncerHands`). A simulation has none; virtual
training plugs real ones in and changes nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gruppetto.protocol.actions import (
    Apply,
    Checkpoint,
    CheckpointClosed,
    Drop,
    DropRests,
    Fold,
    KeepRest,
    LearnerAction,
    Persist,
    Publish,
    Pull,
    Recover,
    RoundClosed,
    SaveState,
    Seed,
    Send,
    SyncerAction,
    TakeOuterStep,
    TakeSnapshot,
)
from gruppetto.protocol.events import (
    Arrived,
    Boundary,
    CheckpointRecorded,
    Folded,
    LearnerEvent,
    LinkLost,
    OuterStepped,
    Persisted,
    Published,
    Seeded,
    StateSaved,
    StepDone,
    StepStarted,
    SyncerEvent,
    Taken,
    Tick,
)
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer, Heartbeat
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import LearnerState, SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import FIRST_EPOCH, Epoch, Fragment, LearnerId, Version
from gruppetto.sim.compute import Pace
from gruppetto.sim.engine import Engine
from gruppetto.sim.network import Link
from gruppetto.trace.log import TraceWriter

__all__ = ["LearnerHands", "LearnerSpec", "SyncerCosts", "SyncerHands", "World"]

LAYOUT_HASH = "simulated"


class LearnerHands(Protocol):
    """What a learner does to tensors."""

    def train(self, round: int, slot: int, cursor: int) -> tuple[int, int]:
        """One inner step on what lies at ``cursor`` of ``slot``; returns the tokens in it, and the next cursor."""

    def seed(self) -> object: ...
    def snapshot(self, fragments: Sequence[Fragment]) -> None: ...
    def contribution(self, answer: Answer) -> object: ...
    @property
    def keeps_rest(self) -> bool:
        """Its encoding leaves something unsaid, and it wants to know what was taken."""
        ...

    def keep_rest(self, action: KeepRest) -> None: ...
    def apply(self, action: Apply, value: object) -> None: ...


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
    and ``learner_states`` are the parts of a checkpoint that the world goes on from as a whole.
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
    ) -> None:
        self.setting = setting
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
        self._wakes_at: float | None = None
        self.learners = {
            spec.name: _SimulatedLearner(
                spec,
                world=self,
                core=make_learner(LearnerId(spec.name), session=f"{seed}-{spec.name}", layout_hash=LAYOUT_HASH),
                hands=learner_hands(spec) if learner_hands else None,
                rng=random.Random(f"{seed}/{spec.name}"),
            )
            for spec in sorted(specs, key=lambda s: s.name)
        }
        for name, saved in (learner_states or {}).items():
            self.learners[name].core.restore(saved, same_life=True)

    def run(self, until: float) -> int:
        """Let it live until virtual time ``until`` (seconds) or the end of the run; returns the number of events."""
        return self.engine.run(until)

    # ── the syncer's shell ───────────────────────────────────────────────────────────────────────────────────────

    def tell_syncer(self, event: SyncerEvent) -> None:
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
                learner.taken(action)
                cosine = self.hands.fold(action, contribution) if self.hands is not None else None
                done = Folded(round=action.round, fragment=action.fragment, learner=action.learner, cosine=cosine)
                self._complete(self.costs.fold_s, done)
            case Drop():
                self.learners[action.learner].contributions.pop((action.round, action.fragment), None)
            case TakeOuterStep():
                stepped = OuterStepped(round=action.round) if self.hands is None else self.hands.outer_step(action)
                self._complete(self.costs.merge_s, stepped)
            case Persist():
                self._complete(self.costs.persist_s, Persisted(round=action.round))
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
        self.engine.after(cost_s, lambda: self.tell_syncer(event))

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


class _SimulatedLearner:
    """A learner's shell: its training loop is a chain of planned boundaries."""

    def __init__(
        self, spec: LearnerSpec, *, world: World, core: LearnerCore, hands: LearnerHands | None, rng: random.Random
    ) -> None:
        self.spec, self.world, self.core, self.hands = spec, world, core, hands
        self.contributions: dict[tuple[int, Fragment], object] = {}
        """Sent and not yet folded or dropped, by (round, fragment)."""
        self._rng = rng
        self._offered: dict[tuple[int, Fragment], int] = {}
        """Tokens of what was sent lately."""
        self._training = False
        self._arrived: dict[Fragment, object] = {}
        self._alive = False
        world.engine.at(spec.joins_at, self._join)
        if spec.dies_at is not None:
            world.engine.at(spec.dies_at, self._die)

    def receive(self, message: LearnerEvent) -> None:
        """A message from the syncer is on its way."""
        self.world.engine.after(self.spec.link.latency_s, lambda: self._feed(message))

    def _join(self) -> None:
        self._alive = True
        self._to_syncer(self.core.hello())
        self._beat()

    def _die(self) -> None:
        if self._alive:
            self._alive = False
            self.world.tell_syncer(LinkLost(learner=self.core.learner, incarnation=self.core.incarnation))

    def _beat(self) -> None:
        if not self._alive:
            return
        if self.core.linked:
            self._to_syncer(Heartbeat(learner=self.core.learner, incarnation=self.core.incarnation))
        self.world.engine.after(self.world.setting.liveness_s / 4, self._beat)

    def _feed(self, event: LearnerEvent) -> None:
        if not self._alive:
            return
        now = self.world.engine.now
        actions = self.core.step(now, event)
        if self.world.trace is not None:
            self.world.trace.event(now, self.spec.name, event)
            self.world.trace.actions(now, self.spec.name, actions)
        for action in actions:
            self._perform(action)
        if not self._training:
            # Before training starts, nothing forbids touching the parameters at once.
            if self.core.wants_boundary:
                self._feed(Boundary())
            elif self.core.ready:
                self._training = True
                self._start_step()

    def _start_step(self) -> None:
        if self._alive and not self.core.finished:
            self._feed(StepStarted())
            self.world.engine.after(self.spec.pace.next_step_s(self._rng), self._finish_step)

    def _finish_step(self) -> None:
        if not self._alive:
            return
        tokens, cursor = self.spec.tokens_per_step, self.core.cursor + 1
        if self.hands is not None:
            tokens, cursor = self.hands.train(self.core.newest_round, self.core.slot, self.core.cursor)
        self._feed(StepDone(tokens=tokens, cursor=cursor))
        self._start_step()

    def _perform(self, action: LearnerAction) -> None:
        match action:
            case Answer():
                self._contribute(action)
            case Seed():
                self._send_seed()
            case Pull():
                self._pull(action)
            case Apply():
                value = self._arrived.pop(action.fragment, None)
                if self.hands is not None:
                    self.hands.apply(action, value)
            case TakeSnapshot():
                if self.hands is not None:
                    self.hands.snapshot(action.fragments)
            case KeepRest():
                if self.hands is not None:
                    self.hands.keep_rest(action)
            case Recover() | DropRests():
                raise AssertionError("learners here begin with the run, or from the syncer, and live one life")
            case SaveState():
                self.world.on_part(self.spec.name, action)
                saved = StateSaved(mark=action.mark, ok=True, text=self.spec.name)
                self.world.engine.after(0.0, lambda: self._feed(saved))
            case _:
                self._to_syncer(action)

    def taken(self, fold: Fold) -> None:
        """The syncer folds a contribution of this learner, and says so."""
        if self.hands is not None and self.hands.keeps_rest:
            tokens = self._offered[fold.round, fold.fragment]
            epoch, round, fragment = self.world.syncer.epoch, fold.round, fold.fragment
            self.receive(Taken(epoch=epoch, round=round, fragment=fragment, tokens=tokens))

    def _to_syncer(self, event: SyncerEvent) -> None:
        self.world.engine.after(self.spec.link.latency_s, lambda: self.world.tell_syncer(event))

    def _contribute(self, answer: Answer) -> None:
        if self.hands is not None and self.world.hands is not None:
            contribution = self.hands.contribution(answer)
            self.contributions[answer.round, answer.fragment] = contribution
            self._offered[answer.round, answer.fragment] = answer.tokens
            self._offered = {key: n for key, n in self._offered.items() if key[0] > self.core.newest_round - 2}
            hands = self.world.hands
            answer = replace(answer, finite=hands.is_finite(contribution), norms=hands.norms(contribution))
        self._to_syncer(answer)

    def _send_seed(self) -> None:
        weights = self.hands.seed() if self.hands is not None else None

        def arrive() -> None:
            value_norms: tuple[tuple[float, ...], ...] = ()
            if self.world.hands is not None:
                self.world.hands.seed(weights)
                value_norms = self.world.hands.value_norms()
            self.world.tell_syncer(
                Seeded(learner=self.core.learner, incarnation=self.core.incarnation, value_norms=value_norms)
            )

        self.world.engine.after(self.spec.link.latency_s, arrive)

    def _pull(self, action: Pull) -> None:
        """A request travels up, the newest value travels down."""

        def serve() -> None:
            version = self.world.syncer.published[action.fragment]
            hands = self.world.hands
            value = hands.read(action.fragment, version) if hands is not None else None
            self.world.engine.after(self.spec.link.latency_s, lambda: arrive(version, value))

        def arrive(version: Version, value: object) -> None:
            if self._alive:
                self._arrived[action.fragment] = value
                self._feed(Arrived(fragment=action.fragment, version=version))

        self.world.engine.after(self.spec.link.latency_s, serve)
