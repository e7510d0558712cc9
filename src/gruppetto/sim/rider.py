"""One learner of a fleet: its shell in virtual time, around the core that ships.

Its training is that of an :class:`~gruppetto.sim.elastic.ElasticJob`: pauses, lost steps and missing slices come from
there, and no tensor anywhere. A learner that pauses stays linked; one that loses all its chips is dead, and begins a
new life when some are back.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gruppetto.protocol.actions import Apply, LearnerAction, Pull, Seed, TakeSnapshot
from gruppetto.protocol.events import (
    Arrived,
    Boundary,
    LearnerEvent,
    LinkDown,
    LinkLost,
    Seeded,
    StepDone,
    StepStarted,
    SyncerEvent,
)
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.maker import maker
from gruppetto.protocol.messages import Answer, Heartbeat, Progress
from gruppetto.protocol.units import LearnerId
from gruppetto.sim.compute import Pace
from gruppetto.sim.elastic import ElasticJob, Stretch
from gruppetto.sim.network import Link
from gruppetto.sim.world import LAYOUT_HASH

if TYPE_CHECKING:
    from gruppetto.sim.fleet import Fleet

__all__ = ["Rider", "RiderSpec"]

STEP_STARTED, BOUNDARY, LINK_DOWN = StepStarted(), Boundary(), LinkDown()
new_step_done, new_arrived = maker(StepDone), maker(Arrived)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiderSpec:
    """One learner: its chips and what befalls them, its pace, its link, and when it is there."""

    name: str
    job: ElasticJob
    pace: Pace
    link: Link = field(default_factory=Link)
    joins_s: float = 0.0
    leaves_s: float | None = None
    cuts: tuple[tuple[float, float], ...] = ()
    """(when, for how long) its link to the syncer is down, in seconds."""


class Rider:
    """Runs the learner's core through a chain of planned boundaries."""

    def __init__(self, index: int, spec: RiderSpec, *, fleet: Fleet, rng: random.Random) -> None:
        self.index, self.spec, self.fleet = index, spec, fleet
        self.core = self._new_core(life=1)
        self.lives = 1
        self.steps = 0
        """Inner steps over all lives."""
        self._rng, self._pace, self._job = rng, spec.pace, spec.job
        self._engine = fleet.engine
        self._alive = False
        self._gone = False
        self._training = False
        self._reachable = True
        self.link_life = 0
        """Rises when the link breaks: what is under way then never arrives."""
        self._spoke_s = 0.0
        self._making: Stretch | None = None
        self.latency_s = spec.link.latency_s
        self._transfer_s = spec.link.transfer_s(fleet.fragment_bytes)
        self._download_s = spec.link.transfer_s(fleet.download_bytes)
        self._engine.at(spec.joins_s, self._join)
        if spec.leaves_s is not None:
            self._engine.at(spec.leaves_s, self._leave)
        for at_s, for_s in spec.cuts:
            self._engine.at(at_s, self.cut)
            self._engine.at(at_s + for_s, self.mend)

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def _new_core(self, *, life: int) -> LearnerCore:
        name = self.spec.name
        return LearnerCore(LearnerId(name), session=f"{name}-{life}", layout_hash=LAYOUT_HASH)

    def _join(self) -> None:
        self._alive = True
        self.dial()
        self._beat(self.lives)

    def _leave(self) -> None:
        if self._alive:
            self._to_syncer(self.core.goodbye(), self.latency_s)
            self._end()
        self._gone = True

    def _end(self) -> None:
        self._alive = False
        self.fleet.tally.stops(self.index, self._engine.now)

    def _die(self, life: int) -> None:
        if self._alive and life == self.lives:
            self._end()
            self._training = False
            self._break_link()

    def _be_born_again(self) -> None:
        if self._gone:
            return
        self.lives += 1
        self.core = self._new_core(life=self.lives)
        self._join()

    def dial(self) -> None:
        """Say hello, if there is anybody to hear it."""
        if self._alive and self._reachable and self.fleet.syncer_is_up:
            self._to_syncer(self.core.hello(), self.latency_s)

    def cut(self) -> None:
        """The link to the syncer goes down."""
        self._reachable = False
        if self._alive:
            self._break_link()
            self._feed(LINK_DOWN)

    def mend(self) -> None:
        self._reachable = True
        self.dial()

    def _break_link(self) -> None:
        self.link_life += 1
        if self.fleet.syncer_is_up:
            self.fleet.tell(LinkLost(learner=self.core.learner, incarnation=self.core.incarnation))

    def syncer_died(self) -> None:
        """Nothing that is under way arrives any more. Training goes on."""
        self.link_life += 1
        if self._alive:
            self._feed(LINK_DOWN)

    def _beat(self, life: int) -> None:
        """Whoever has just spoken need not say that it lives."""
        if not self._alive or life != self.lives:
            return
        every_s, now = self.fleet.beat_s, self._engine.now
        if self.core.linked and self._reachable and now - self._spoke_s >= every_s:
            self._to_syncer(Heartbeat(learner=self.core.learner, incarnation=self.core.incarnation), self.latency_s)
        self._engine.at(max(self._spoke_s, now) + every_s, partial(self._beat, life))

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        if not self._alive or self.core.finished:
            return
        now = self._engine.now
        self._feed(STEP_STARTED)
        step_s = self._pace.next_step_s(self._rng) if self._pace.jitter else self._pace.step_s
        stretch = self._job.train(now, step_s, self.fleet.stride)
        if not stretch.steps:
            assert stretch.dark_s is not None
            self._engine.at(stretch.dark_s, partial(self._die, self.lives))
            self._engine.at(stretch.began_s, self._be_born_again)
            return
        self._making = stretch
        if stretch.began_s > now:
            self.fleet.tally.stops(self.index, now)
            self._engine.at(stretch.began_s, partial(self._start_again, self.lives))
        self._engine.at(stretch.done_s, partial(self._finish, stretch, self.lives))

    def _start_again(self, life: int) -> None:
        if self._alive and life == self.lives:
            self.fleet.tally.goes(self.index, self._engine.now)
            self._feed(STEP_STARTED)

    def _finish(self, stretch: Stretch, life: int) -> None:
        if not self._alive or life != self.lives:
            return
        self.settle()
        self.steps += stretch.steps
        self.fleet.trained(stretch.steps * stretch.chips)
        self._feed(new_step_done(tokens=stretch.steps * stretch.chips, cursor=self.core.cursor + stretch.steps))
        self._start()

    def settle(self) -> None:
        """Book the steps in progress, up to the horizon."""
        stretch, self._making = self._making, None
        if stretch is not None and self._alive:
            self.fleet.tally.trained(stretch.began_s, stretch.done_s, chips=stretch.chips)

    # ── the core and what it wants ───────────────────────────────────────────────────────────────────────────────

    def hear(self, link_life: int, message: LearnerEvent) -> None:
        """A message that was sent when the link had lived ``link_life`` times."""
        if link_life != self.link_life or not self._alive:
            return
        self._feed(message)
        if not self._training:
            # Before training starts, nothing forbids touching the parameters at once.
            if type(message) is Arrived:
                self._feed(BOUNDARY)
            elif self.core.ready:
                self._training = True
                self.fleet.tally.goes(self.index, self._engine.now)
                self._start()

    def _feed(self, event: LearnerEvent) -> None:
        actions = self.core.step(self._engine.now, event)
        if actions and self._reachable and self.fleet.syncer_is_up:
            for action in actions:
                kind = type(action)
                if kind is not TakeSnapshot and kind is not Apply:  # there is nothing to copy
                    self._perform(action)

    def _perform(self, action: LearnerAction) -> None:
        kind = type(action)
        if kind is Progress:
            self._to_syncer(action, self.latency_s)  # type: ignore[arg-type]
        elif kind is Pull:
            assert isinstance(action, Pull)
            arrived = new_arrived(fragment=action.fragment, version=action.version)
            there_s = self._engine.now + (self.latency_s + self._download_s)
            self._engine.at(there_s, partial(self.hear, self.link_life, arrived))
        elif kind is Seed:
            seeded = Seeded(learner=self.core.learner, incarnation=self.core.incarnation)
            self._to_syncer(seeded, self._transfer_s * self.fleet.setting.num_fragments)
        elif kind is Answer:
            self._to_syncer(action, self._transfer_s)  # type: ignore[arg-type]
        else:
            self._to_syncer(action, self.latency_s)  # type: ignore[arg-type]

    def _to_syncer(self, event: SyncerEvent, delay_s: float) -> None:
        self._spoke_s = now = self._engine.now
        self._engine.at(now + delay_s, partial(self._deliver, self.link_life, event))

    def _deliver(self, link_life: int, event: SyncerEvent) -> None:
        if link_life == self.link_life:
            self.fleet.tell(event)
