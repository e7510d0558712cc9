"""The syncer's process: the shipping core and the shipping switchboard, its hands, and a disk that outlives it."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gruppetto.chaos.fences import nothing_changes_in_syncer, visitors_only_look
from gruppetto.chaos.gatekeeper import VALUE_NORMS
from gruppetto.chaos.hands import Hands
from gruppetto.chaos.network import Wire
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import (
    Send,
    SyncerAction,
)
from gruppetto.protocol.events import (
    GoesOnElsewhere,
    LinkLost,
    LookedAround,
    Persisted,
    PersistFailed,
    Seeded,
    Settle,
    Stop,
    SyncerEvent,
    Tick,
)
from gruppetto.protocol.messages import Answer, Hello, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Round
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.switchboard import Switchboard
from gruppetto.runtime.wire import CloseCode, Frame, HelloFrame, ProgressFrame, WelcomeFrame
from gruppetto.trace.schema import core_and_header

if TYPE_CHECKING:
    from gruppetto.chaos.world import World

__all__ = ["SyncerProcess"]

_log = logging.getLogger("gruppetto.chaos")

LOOK_S = 20.0
"""About how often its shell looks around."""
LAST_COMMIT_S = 4.0
"""How long it tries to make its last commit."""


class SyncerProcess:
    """One life of the syncer. It begins from what is durable, with an epoch of its own."""

    def __init__(self, world: World, *, alone: bool = True) -> None:
        """``alone``: no other life is at work on the same state any more."""
        self.world = world
        self.alive, self.over = True, False
        self.off_guard = False
        """Stopped behind each of its checks: what is under way is carried out in spite of the fence."""
        self.legacy = world.disk.claim(alone=alone)
        self.epoch = self.legacy.epoch
        world.watch.claimed(self)
        self._looks = random.Random(f"{world.plan.seed} looks {self.epoch}")
        commit = self.legacy.commit
        self.hands = Hands(self, {c.fragment: c for c in commit.contents} if commit else {})
        self.wires: list[Wire] = []
        self._seeder: tuple[LearnerId, Incarnation] | None = None
        """Whose initial weights were asked for."""
        self._settling = self._stopping = False
        self._settle_at: float | None = None
        self._wakes_at: float | None = None
        self._make_core()

    def _make_core(self) -> None:
        commit, unseen, damaged = self.legacy.commit, self.legacy.unseen, self.legacy.damaged
        state = commit.state if commit else None
        self.core: SyncerCore
        self.core, made_of = core_and_header(
            self.world.make_syncer,
            self.world.setting,
            run_id=self.world.run_id,
            layout_hash=self.world.layout_hash,
            epoch=self.epoch,
            state=state,
            unseen=unseen,
            damaged=damaged,
            offsets=self.world.plan.offsets,
        )
        self.switchboard = Switchboard(self._dress, Complaints(_log))
        if self.world.trace is not None:
            self.world.trace.header(made_of)
        self.world.watch.new_core(self)

    def begin(self) -> None:
        """Take up what the last life has left."""
        self._look_at_shards()
        if self.legacy.commit is not None:
            self.feed(Tick())
        self.world.engine.after(LOOK_S * self._looks.random(), self.look_around)

    def _look_at_shards(self) -> None:
        if self.world.goes_on_elsewhere:
            self.feed(GoesOnElsewhere(goes_on=True))

    def look_around(self) -> None:
        """What a shell sees beside the protocol: a disk that fills and is cleared, clocks that are wrong."""
        if not self.alive or self.over:
            return
        names, draw = sorted(member.learner for member in self.core.members), self._looks
        self.feed(
            LookedAround(
                free_bytes=draw.choice((0, 90, 110, 149, 151, 1000)),
                wanted_bytes=100,
                skews_s=tuple((name, draw.choice((0.0, -2.0, 4.0, -6.0))) for name in names),
                losses=tuple((name, draw.choice((1.0, 1.2, math.inf))) for name in names),
            )
        )
        self.world.engine.after(LOOK_S * draw.uniform(0.5, 1.5), self.look_around)

    # ── the doors ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def published(self) -> Mapping[Fragment, Content]:
        """What learners can pull."""
        return self.hands.published

    def greet(self, wire: Wire, hello: Hello) -> None:
        if not self.alive or self._stopping or not self.has_authority():
            wire.end_of_syncer()
            return
        if self.core.phase is Phase.SEEDING and not self.core.members.connected():
            self._make_core()  # nobody has seeded and nobody is here: nothing binds the next learner
            self._look_at_shards()
        self.wires = [other for other in self.wires if other.is_open]
        self.wires.append(wire)
        self.switchboard.plug_in(wire)
        self.feed(hello)

    def receive(self, wire: Wire, frame: Frame) -> None:
        if self.alive and wire.closing is None and self.switchboard.is_current(wire):
            self.feed(_event_of(frame))

    def lost(self, wire: Wire) -> None:
        if self.alive and self.switchboard.unplug(wire) and wire.incarnation:
            self.feed(LinkLost(learner=wire.learner, incarnation=wire.incarnation))

    def hear_ghost(self, frame: Frame) -> None:
        """A message of another life arrives. What is due now by the clock is done before."""
        self.feed(Tick())
        with nothing_changes_in_syncer(self, frame):
            self.feed(_event_of(frame))

    def contribute(self, answer: Answer, work: Work) -> None:
        """A contribution and its body are here."""
        self.hands.at_the_door = (work, answer.tokens)
        self.world.watch.at_the_gate(self, answer, work)
        self.feed(replace(answer, finite=work.finite, norms=work.norms))
        self.hands.at_the_door = None

    def seed(self, learner: LearnerId, incarnation: Incarnation) -> None:
        """The initial weights are here; they count if they were asked for."""
        if self._seeder == (learner, incarnation):
            self._seeder = None
            self.hands.take_seed()
            value_norms = (VALUE_NORMS,) * self.world.setting.num_fragments
            self.feed(Seeded(learner=learner, incarnation=incarnation, value_norms=value_norms))

    def die(self, *, silent: bool) -> None:
        """kill −9, or, ``silent``, with its whole machine."""
        self.alive = False
        for wire in self.wires:
            if silent:
                wire.go_deaf()
            else:
                wire.end_of_syncer()

    def stop(self) -> None:
        """SIGTERM: learners are told, and what is published is made durable, with some patience for the disk."""
        if not self.alive or self.over or self._stopping:
            return
        self._stopping = True
        self.switchboard.close_all(CloseCode.GOING_AWAY, "the syncer stops")
        self.world.engine.after(LAST_COMMIT_S, self._end)
        self.feed(Stop())

    def _end(self) -> None:
        if self.alive:
            self.die(silent=False)
            self.world.fate.has_stopped(self)

    def step_down(self) -> None:
        """Another life has the authority: this one ends, for ever."""
        self.die(silent=False)

    def dies_at(self, point: str, last_deed: Callable[[], None] | None = None) -> bool:
        """Crashes are of the present life: one that somebody took over from has its own end coming."""
        return self is self.world.syncer and self.world.fate.dies_at(point, last_deed)

    def has_authority(self) -> bool:
        if self.off_guard or self.world.disk.has_authority(self.epoch):
            return True
        self.step_down()
        return False

    def feed(self, event: SyncerEvent) -> None:
        if not self.alive or (self.over and not isinstance(event, Hello)):
            return
        now = self.world.engine.now
        with visitors_only_look(self.core, event):
            actions = self.core.step(now, event)
        self.world.record(now, "syncer", event, actions)
        self.world.watch.stepped(self, event, actions)
        for action in actions:
            if self.dies_at(type(action).__name__) or not self.alive:
                return
            self._perform(action)
        self._plan_wake()
        if self._stopping and self.core.stopped:
            self.world.watch.stopped(self)
            self._end()
        if self.core.is_over and not self._settling:
            self._look_for_the_end()

    # ── carrying out ─────────────────────────────────────────────────────────────────────────────────────────────

    def _perform(self, action: SyncerAction) -> None:
        if isinstance(action, Send):
            message = action.message
            if isinstance(message, Welcome) and message.seed:
                self._seeder = (action.to, message.incarnation)
            self.switchboard.send(action.to, action.session, message)
        else:
            self.hands.carry_out(action)

    def persisted(self, round: Round) -> None:
        """A commit is on the disk."""
        self.feed(Persisted(round=round))
        if self._settling:
            self._put_away()

    def persist_failed(self, round: Round) -> None:
        """The disk has refused it."""
        self.feed(PersistFailed(round=round, why="the disk is full"))
        if self._settling:
            self.world.engine.after(1.0, lambda: self.feed(Settle()))

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _plan_wake(self) -> None:
        """Only one pending wake counts: an earlier one replaces it, a later one is asked for when it fires."""
        wake = self.core.wake_at
        if wake is None or (self._wakes_at is not None and self._wakes_at <= wake):
            return
        self._wakes_at = wake
        self.world.engine.at(wake, lambda: self._wake(wake))

    def _wake(self, planned: float) -> None:
        if planned == self._wakes_at and self.alive:
            self._wakes_at = None
            self.feed(Tick())

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _look_for_the_end(self) -> None:
        if not self.core.members.connected():
            self._settle()
        elif self._settle_at is None:
            self._settle_at = self.world.engine.now + self.world.plan.goodbye_s
            self.world.engine.at(self._settle_at, self._settle)

    def _settle(self) -> None:
        if self.alive and not self._settling:
            self._settling = True
            self.feed(Settle())

    def _put_away(self) -> None:
        self.over = True
        self.switchboard.close_all(CloseCode.GOING_AWAY, "the run is over")

    def _dress(self, welcome: Welcome) -> WelcomeFrame:
        return WelcomeFrame(
            welcome=welcome,
            fragmenter="balanced",
            fragments_asked=welcome.num_fragments,
            merge=(),
            uplink="fp32",
            downlink="fp32",
            layout_hash=self.world.layout_hash,
            fragmentation_hash="",
            liveness_s=self.world.setting.liveness_s,
            run={},
        )


def _event_of(frame: Frame) -> SyncerEvent:
    """What the service makes of a frame."""
    if isinstance(frame, ProgressFrame):
        return frame.progress
    assert not isinstance(frame, HelloFrame | WelcomeFrame)
    return frame  # type: ignore[return-value]
