"""Decoupled learners on many chips, and their syncer: the shipping cores in virtual time, priced and made to fail.

Much like :class:`~gruppetto.sim.world.World`, but without tensors, made to live through days: learners are elastic
jobs, links break, the syncer dies and comes back from what it had made durable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from gruppetto.protocol.actions import (
    Fold,
    Persist,
    Publish,
    RoundClosed,
    Send,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.events import Folded, LearnerEvent, OuterStepped, Persisted, Published, SyncerEvent, Tick
from gruppetto.protocol.maker import maker
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import FIRST_EPOCH, Epoch
from gruppetto.sim.engine import Engine
from gruppetto.sim.rider import Rider, RiderSpec
from gruppetto.sim.tally import Tally
from gruppetto.sim.world import LAYOUT_HASH, SyncerCosts
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import core_header

__all__ = ["Fleet"]

new_folded = maker(Folded)


RUN_ID = "simulated"
"""Any name will do; a fixed one keeps traces of one seed alike."""


PARTS = 100
"""In which a run is gone through, for whoever wants to see it go on."""


class Fleet:
    """A syncer and its learners over ``horizon_s`` seconds. The same arguments give the same history.

    ``stride`` inner steps go by between two boundaries that the cores see; a loss still cuts at an inner step.
    ``outages`` are (when, for how long) of the syncer. A header for ``trace`` is written by the fleet.
    """

    def __init__(
        self,
        setting: ProtocolSetting,
        specs: Sequence[RiderSpec],
        *,
        seed: int,
        horizon_s: float,
        costs: SyncerCosts | None = None,
        stride: int = 1,
        fragment_bytes: int = 0,
        download_bytes: int | None = None,
        outages: Sequence[tuple[float, float]] = (),
        trace: TraceWriter | None = None,
        make_syncer: Callable[..., SyncerCore] = SyncerCore,
    ) -> None:
        self.setting, self.costs, self.trace = setting, costs or SyncerCosts(), trace
        self.engine = Engine()
        self.stride, self.fragment_bytes = stride, fragment_bytes
        self.download_bytes = fragment_bytes if download_bytes is None else download_bytes
        self._folds_until_s = 0.0
        """One worker folds, one contribution after the other."""
        self.beat_s = setting.liveness_s / 4
        self.tally = Tally(chips=sum(s.job.all_chips for s in specs), parties=len(specs), horizon_s=horizon_s)
        self.rounds = self.merged = self.could_merge = 0
        self.grace_s = 0.0
        self.tokens = 0
        """What all learners have trained on: chip·steps."""
        self.stop_at_tokens: int | None = None
        self.syncer_is_up = True
        self.lives = 1
        self._make_syncer = make_syncer
        self._durable: SyncerState | None = None
        self._wakes_s: float | None = None
        self._said: LearnerEvent | None = None
        """The last message, for as long as the same one may be said to others too."""
        self._heard_s = 0.0
        self._hearers: list[tuple[Rider, int]] = []
        self.syncer = self._new_syncer()
        self.riders = {
            spec.name: Rider(index, spec, fleet=self, rng=random.Random(f"{seed}/{spec.name}"))
            for index, spec in enumerate(sorted(specs, key=lambda s: s.name))
        }
        for at_s, for_s in outages:
            self.engine.at(at_s, self._crash)
            self.engine.at(at_s + for_s, self._restart)

    def run(self, passed: Callable[[float], None] = lambda now_s: None) -> int:
        """Live until the horizon; the number of events. ``passed`` hears of the simulated time now and then."""
        events, horizon_s = 0, self.tally.horizon_s
        for part in range(1, PARTS + 1):
            until = horizon_s * part / PARTS
            events += self.engine.run(until)
            if self.engine.now < until:
                break  # it was stopped
            passed(self.engine.now)
        self.tally.horizon_s = self.engine.now
        for rider in self.riders.values():
            rider.settle()
        if self.trace is not None:
            self.trace.note(self.engine.now, "syncer", "ledger", **self.syncer.ledger.in_tokens())
        return events

    def trained(self, tokens: int) -> None:
        self.tokens += tokens
        if self.stop_at_tokens is not None and self.tokens >= self.stop_at_tokens:
            self.engine.stop()

    # ── the syncer's shell ───────────────────────────────────────────────────────────────────────────────────────

    def tell(self, event: SyncerEvent) -> None:
        """Feed the syncer, if it is up."""
        if not self.syncer_is_up:
            return
        now = self.engine.now
        self._said = None
        actions = self.syncer.step(now, event)
        if self.trace is not None:
            self.trace.event(now, "syncer", event)
            self.trace.actions(now, "syncer", actions)
        for action in actions:
            self._perform(action)
        wake = self.syncer.wake_at
        if wake is not None and (self._wakes_s is None or wake < self._wakes_s):
            # Only one pending wake counts: an earlier one replaces it, a later one is asked for when it fires.
            self._wakes_s = wake
            self.engine.at(wake, partial(self._wake, wake))

    def _perform(self, action: SyncerAction) -> None:
        kind = type(action)
        if isinstance(action, Send):
            self._say(action.message, self.riders[action.to])
        elif isinstance(action, Fold):
            done = new_folded(round=action.round, fragment=action.fragment, learner=action.learner)
            began_s, now = self._folds_until_s, self.engine.now
            self._folds_until_s = done_s = (now if now > began_s else began_s) + self.costs.fold_s
            self.engine.at(done_s, partial(self._completed, self.lives, done))
        elif kind is TakeOuterStep:
            assert isinstance(action, TakeOuterStep)
            self._complete(self.costs.merge_s, OuterStepped(round=action.round))
        elif kind is Persist:
            assert isinstance(action, Persist)
            self.engine.after(self.costs.persist_s, partial(self._persisted, self.lives, action))
        elif kind is Publish:
            assert isinstance(action, Publish)
            for name in action.to:
                self._say(action.message, self.riders[name])
            self._complete(self.costs.publish_s, Published(round=action.message.round))
        elif kind is RoundClosed:
            assert isinstance(action, RoundClosed)
            self.rounds += 1
            if self.syncer.schedule.due(action.round):
                self.merged += len(action.participants)
                self.could_merge += action.live
            self.grace_s += action.grace_spent_s

    def _say(self, message: LearnerEvent, rider: Rider) -> None:
        """What is said to many in a row is one event, if the way to them is equally long."""
        there_s = self.engine.now + rider.latency_s
        if message is not self._said or there_s != self._heard_s:
            self._said, self._heard_s, self._hearers = message, there_s, []
            self.engine.at(there_s, partial(_hear, self._hearers, message))
        self._hearers.append((rider, rider.link_life))

    def _complete(self, cost_s: float, event: SyncerEvent) -> None:
        self.engine.after(cost_s, partial(self._completed, self.lives, event))

    def _completed(self, life: int, event: SyncerEvent) -> None:
        if life == self.lives:
            self.tell(event)

    def _persisted(self, life: int, action: Persist) -> None:
        if life == self.lives and self.syncer_is_up:
            self._durable = action.state
            self.tell(Persisted(round=action.round))

    def _wake(self, planned: float) -> None:
        if planned == self._wakes_s:
            self._wakes_s = None
            self.tell(Tick())

    # ── its lives ────────────────────────────────────────────────────────────────────────────────────────────────

    def _new_syncer(self) -> SyncerCore:
        epoch = Epoch(FIRST_EPOCH + self.lives - 1)
        state = self._durable
        if self.trace is not None:
            made_of = core_header(self.setting, run_id=RUN_ID, layout_hash=LAYOUT_HASH, epoch=epoch, state=state)
            # Its records tell the time of the whole world: its clock stood at 0 when that began.
            self.trace.header({"started_at": 0.0, **made_of})
        return self._make_syncer(self.setting, run_id=RUN_ID, layout_hash=LAYOUT_HASH, epoch=epoch, state=state)

    def _crash(self) -> None:
        self.syncer_is_up = False
        self._wakes_s = None
        self._folds_until_s = 0.0
        for rider in self.riders.values():
            rider.syncer_died()

    def _restart(self) -> None:
        self.lives += 1
        self.syncer_is_up = True
        self.syncer = self._new_syncer()
        for rider in self.riders.values():
            rider.dial()


def _hear(hearers: list[tuple[Rider, int]], message: LearnerEvent) -> None:
    for rider, link_life in hearers:
        rider.hear(link_life, message)
