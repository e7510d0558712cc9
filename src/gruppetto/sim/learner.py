"""A learner's shell in virtual time: its training loop is a chain of planned boundaries, over one life after the other.

What a hung learner would have heard waits for it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from gruppetto.protocol.donors import Source
from gruppetto.protocol.events import (
    Boundary,
    LearnerEvent,
    Leaving,
    LinkDown,
    LinkLost,
    Recovered,
    StepDone,
    StepStarted,
    SyncerEvent,
)
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Heartbeat
from gruppetto.protocol.units import Fragment, LearnerId
from gruppetto.sim.deeds import Deeds
from gruppetto.sim.giving import Giver, Kept
from gruppetto.sim.mishaps import Mishap, MishapKind
from gruppetto.sim.road import Road

if TYPE_CHECKING:
    from gruppetto.sim.world import LearnerHands, LearnerSpec, World

__all__ = ["SimulatedLearner"]


class SimulatedLearner:
    """One learner of a :class:`~gruppetto.sim.world.World`."""

    def __init__(
        self,
        spec: LearnerSpec,
        *,
        world: World,
        make_core: Callable[..., LearnerCore],
        hands: LearnerHands | None,
        session: str,
        layout_hash: str,
        rng: random.Random,
    ) -> None:
        self.spec, self.world, self.hands = spec, world, hands
        self._make_core, self._session, self._layout_hash = make_core, session, layout_hash
        self.lives = 1
        self.core = self._new_core()
        self.giver = Giver(self)
        self.kept: Kept | None = None
        """What its own last checkpoint holds."""
        self.contributions: dict[tuple[int, Fragment], object] = {}
        """Arrived and not yet folded or dropped, by (round, fragment)."""
        self.alive = False
        self.has_left = False
        self.steps = 0
        """Inner steps over all lives."""
        self._rng = rng
        self._training = self._noticed = False
        self.road = Road(world.engine, latency_s=spec.link.latency_s)
        self._deeds = Deeds(self)
        self._keep_at = spec.keeps_every
        self._shares: list[float] = []
        self.factors: list[float] = []
        """By which its contributions are multiplied now."""
        self._stopped_until, self._stood_s = 0.0, 0.0
        self._held: list[tuple[int, Callable[[], None]]] = []
        world.engine.at(spec.joins_at, self._begin)
        if spec.dies_at is not None:
            world.engine.at(spec.dies_at, lambda: self.kill(math.inf))
        if spec.leaves_at is not None:
            world.engine.at(spec.leaves_at, self.leave)

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def _new_core(self) -> LearnerCore:
        session = self._session if self.lives == 1 else f"{self._session}-{self.lives}"
        if not self.world.recovers:
            return self._make_core(LearnerId(self.spec.name), session=session, layout_hash=self._layout_hash)
        return self._make_core(
            LearnerId(self.spec.name),
            session=session,
            layout_hash=self._layout_hash,
            recovers=True,
            donates_at=session if self.spec.donates else "",
        )

    def _begin(self) -> None:
        self.alive = True
        self.dial()
        self._beat(self.lives)

    def _be_born_again(self) -> None:
        if self.has_left:
            return
        self.lives += 1
        self.core, self.giver = self._new_core(), Giver(self)
        if self.hands is not None:
            self.hands.begin()
        self._begin()

    def kill(self, away_s: float) -> None:
        """Its process is gone at once, and what it did since its bases; a new one is there after ``away_s``.

        Who has had notice already has no place to come back to.
        """
        if not self.alive:
            return
        returns = away_s < math.inf and not self._noticed
        self.world.note(self.spec.name, "died", learner=self.spec.name, cause="SIGKILL", wall_s=self.world.engine.now)
        self._end()
        self._break_link()
        if returns:
            self.world.engine.after(away_s, self._be_born_again)
        else:
            self.has_left = True

    def _end(self) -> None:
        self.alive = self._training = self._noticed = False
        self.giver.end()
        self._deeds.forget()
        self._held.clear()
        self._stopped_until = self._stood_s = 0.0

    def leave(self) -> None:
        """It has had notice. The step in progress is ended first."""
        self._noticed = True
        if not self.alive:
            self.has_left = True
        elif not self._training:
            self.awake(self.lives, self._part)

    def _part(self) -> None:
        if self._training:
            self.feed(Leaving())
        self.to_syncer(self.core.goodbye())
        self._end()
        self.has_left = True  # what is on its way still arrives: the link was not broken

    def stop(self, lasts_s: float) -> None:
        """It hangs. The step in progress ends so much later."""
        if not self.alive:
            return
        now = self.world.engine.now
        until = max(self._stopped_until, now + lasts_s)
        self._stood_s += until - max(self._stopped_until, now)
        self._stopped_until = until
        self.world.engine.at(until, self._wake)

    def _wake(self) -> None:
        if self.world.engine.now >= self._stopped_until:
            held, self._held = self._held, []
            for life, do in held:
                self.awake(life, do)

    def awake(self, life: int, do: Callable[[], None]) -> None:
        """Do it if that life still lives; later, if it hangs."""
        if not self.alive or life != self.lives:
            return
        if self.world.engine.now < self._stopped_until:
            self._held.append((life, do))
        else:
            do()

    # ── the link ─────────────────────────────────────────────────────────────────────────────────────────────────

    def dial(self) -> None:
        """Say hello, if there is anybody to hear it."""
        if self.alive and not self.road.cuts and self.world.is_up:
            self.awake(self.lives, lambda: self.to_syncer(self.core.hello()))

    def cut(self, lasts_s: float) -> None:
        """The link is down; both sides know."""
        self.road.cuts += 1
        if self.alive:
            self._break_link()
            self.awake(self.lives, lambda: self.feed(LinkDown()))
        if lasts_s < math.inf:
            self.world.engine.after(lasts_s, self._mend)

    def _mend(self) -> None:
        self.road.cuts -= 1
        self.dial()

    def _break_link(self) -> None:
        self.road.breaks()
        self.world.tell_syncer(LinkLost(learner=self.core.learner, incarnation=self.core.incarnation))

    def syncer_died(self) -> None:
        """Nothing that is on its way arrives any more. Training goes on."""
        self.road.breaks()
        self.contributions.clear()
        self.awake(self.lives, lambda: self.feed(LinkDown()))

    def receive(self, message: LearnerEvent) -> None:
        """A message from the syncer is on its way."""
        self.down(lambda: self.feed(message))

    def down(self, hear: Callable[[], None]) -> None:
        """Something is on its way from the syncer."""
        link, life = self.road.life, self.lives
        self.road.down(lambda: self.awake(life, lambda: hear() if link == self.road.life else None))

    def up(self, arrive: Callable[[], None]) -> None:
        """Something is on its way to the syncer."""
        if self.world.is_up and not self.road.cuts:
            self.road.up(arrive)

    def to_syncer(self, event: SyncerEvent) -> None:
        """A message is on its way to the syncer."""
        self.up(lambda: self.world.tell_syncer(event))

    def _beat(self, life: int) -> None:
        if not self.alive or life != self.lives:
            return
        if self.core.linked and self.world.engine.now >= self._stopped_until:
            self.to_syncer(Heartbeat(learner=self.core.learner, incarnation=self.core.incarnation))
        self.world.engine.after(self.world.setting.liveness_s / 4, lambda: self._beat(life))

    # ── what befalls it ──────────────────────────────────────────────────────────────────────────────────────────

    def suffer(self, mishap: Mishap) -> None:
        """It begins now."""
        match mishap.kind:
            case MishapKind.KILL:
                self.kill(mishap.lasts_s)
            case MishapKind.LEAVE:
                self.leave()
            case MishapKind.STOP:
                self.stop(mishap.lasts_s)
            case MishapKind.CUT:
                self.cut(mishap.lasts_s)
            case MishapKind.SLOW:
                self._for_a_while(self._shares, mishap.share, mishap.lasts_s)
            case MishapKind.LATENCY:
                self._for_a_while(self.road.delays_s, mishap.delay_s, mishap.lasts_s)
            case MishapKind.NAN:
                self._for_a_while(self.factors, math.nan, mishap.lasts_s)
            case MishapKind.SCALE:
                self._for_a_while(self.factors, mishap.factor, mishap.lasts_s)

    def _for_a_while(self, among: list[float], value: float, lasts_s: float) -> None:
        among.append(value)
        if lasts_s < math.inf:
            self.world.engine.after(lasts_s, lambda: among.remove(value))

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────

    def feed(self, event: LearnerEvent) -> None:
        """Something happens to its core, which decides what follows."""
        if not self.alive:
            return
        now = self.world.engine.now
        actions = self.core.step(now, event)
        if self.world.trace is not None:
            self.world.trace.event(now, self.spec.name, event)
            self.world.trace.actions(now, self.spec.name, actions)
        for action in actions:
            self._deeds.do(action)
        if not self._training and not self._noticed:
            # Before training starts, nothing forbids touching the parameters at once.
            if self.core.wants_boundary:
                self.feed(Boundary())
            elif self.core.ready:
                self._training = True
                self._start_step()

    def _start_step(self) -> None:
        if self.alive and not self.core.finished:
            self.feed(StepStarted())
            if self.hands is not None:
                self.hands.start(self.core.slot, self.core.cursor)
            step_s = self.spec.pace.next_step_s(self._rng) / min(self._shares, default=1.0)
            life = self.lives
            self._stood_s = max(0.0, self._stopped_until - self.world.engine.now)
            self.world.engine.after(step_s, lambda: self._end_step(life))

    def _end_step(self, life: int) -> None:
        """What it has stood still meanwhile comes on top."""
        if not self.alive or life != self.lives:
            return
        stood_s, self._stood_s = self._stood_s, 0.0
        if stood_s > 0:
            self.world.engine.after(stood_s, lambda: self._end_step(life))
        else:
            self._finish_step()

    def _finish_step(self) -> None:
        tokens, cursor = self.spec.tokens_per_step, self.core.cursor + 1
        if self.hands is not None:
            tokens, cursor = self.hands.train(self.core.newest_round)
        self.steps += 1
        self.feed(StepDone(tokens=tokens, cursor=cursor))
        self.giver.at_boundary()
        if self._noticed:
            self._part()
            return
        if self.spec.keeps_every and self.core.newest_round >= self._keep_at:
            self._keep()
        self._start_step()

    def _keep(self) -> None:
        self._keep_at = self.core.newest_round + self.spec.keeps_every
        self.kept = Kept(versions=self.core.held, epoch=self.core.epoch)
        if self.hands is not None:
            self.hands.keep()

    def recovered(self, source: Source, known: Kept | None, cut: object, *, donor: str, took_s: float) -> None:
        """The search for a state is over."""
        versions = self._deeds.adopt(source, known, cut)
        self.world.note(self.spec.name, "recovery", source=source.value, donor=donor, seconds=took_s, payload_bytes=0)
        self.feed(Recovered(versions=versions))
