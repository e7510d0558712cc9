"""One fuzzed world: the shipping cores and shells in virtual time, and a plan of what goes wrong."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial

from gruppetto.chaos.cut import Part
from gruppetto.chaos.disk import Disk
from gruppetto.chaos.fate import Fate
from gruppetto.chaos.invariants import BrokenWorldError
from gruppetto.chaos.launcher import Launcher
from gruppetto.chaos.learner import LearnerProcess
from gruppetto.chaos.network import Road
from gruppetto.chaos.observers import Watch
from gruppetto.chaos.plan import Plan
from gruppetto.chaos.record import Record
from gruppetto.chaos.recovery import Recovery
from gruppetto.chaos.syncer import SyncerProcess
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import LearnerAction, SyncerAction
from gruppetto.protocol.events import GoesOnElsewhere, LearnerEvent, SyncerEvent
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer, Deferred
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.sim import Engine
from gruppetto.trace.log import TraceWriter

__all__ = ["World"]


class World:
    """Lives once, from the first Hello to the end of the plan.

    ``make_learner`` and ``make_syncer`` exist for canaries: deliberately wrong cores that must be caught.
    """

    run_id, layout_hash = "fuzz", "fuzzed"

    def __init__(
        self,
        plan: Plan,
        *,
        make_learner: Callable[..., LearnerCore] = LearnerCore,
        make_syncer: Callable[..., SyncerCore] = SyncerCore,
        make_disk: Callable[..., Disk] = Disk,
        trace: TraceWriter | None = None,
    ) -> None:
        self.plan, self.setting = plan, plan.setting
        self.make_learner, self.make_syncer = make_learner, make_syncer
        self.trace = trace
        self.engine = Engine()
        self.disk = make_disk(plan.setting.sync_period, plan.setting.reserve)
        self.watch = Watch(self)
        self.events = 0
        self.digest = 0
        """Of the whole history: the same plan gives the same."""
        self.syncer: SyncerProcess | None = None
        self.elders: list[SyncerProcess] = []
        """Lives that somebody took over from, and that live on for a moment."""
        self.roads = {
            a.name: Road(self.engine, a.link, random.Random(f"{plan.seed} road {a.name}")) for a in plan.learners
        }
        self.records = {learner.name: Record() for learner in plan.learners}
        self.fleet: dict[str, LearnerProcess] = {}
        """The newest process of every learner in the plan."""
        self.processes: list[LearnerProcess] = []
        self.parts: dict[tuple[str, LearnerId, Incarnation], Part] = {}
        """(checkpoint, learner, incarnation): what was saved."""
        self.goes_on_elsewhere = plan.goes_on_elsewhere
        """Other shards of the run have not finished."""
        self.fate, self.launcher = Fate(self), Launcher(self)
        self._recovery: Recovery | None = None
        self._contents = 0

    def run(self) -> None:
        """Live through the plan. Raises whatever is found wrong."""
        self.launcher.start_syncer()
        for learner in self.plan.learners:
            self.engine.at(learner.joins_at_s, partial(self.launcher.start, learner))
        for fault in self.plan.faults:
            self.engine.at(fault.at_s, partial(self.fate.strike, fault))
        self.engine.run(until=self.plan.calm_at_s)
        self.watch.end()
        self._calm()
        self.engine.run(until=self.plan.calm_at_s + self.plan.settle_s)
        missing = self._recovery.missing() if self._recovery else []
        if missing:
            raise BrokenWorldError("progress-resumes", f"{self.plan.settle_s:.0f} s later: {'; '.join(missing)}")
        self.watch.end()

    # ── what processes ask of their world ────────────────────────────────────────────────────────────────────────

    def record(
        self,
        now: float,
        who: str,
        event: SyncerEvent | LearnerEvent,
        actions: Sequence[SyncerAction] | Sequence[LearnerAction],
    ) -> None:
        """One step of one core."""
        self.events += 1
        if self._recovery is not None and isinstance(event, Deferred):
            self._recovery.heard(event, None)
        line = f"{now!r} {who} {type(event).__name__} {len(actions)}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.trace is not None:
            self.trace.event(now, who, event)
            self.trace.actions(now, who, actions)

    def dialled(self, rng: random.Random) -> SyncerProcess | None:
        """Whoever answers: while an old life goes on beside the new one, either."""
        lives = [life for life in [*self.elders, self.syncer] if life is not None and life.alive]
        return rng.choice(lives) if len(lives) > 1 else self.syncer

    def _at(self, syncer: SyncerProcess | None) -> SyncerProcess | None:
        """The one that was dialled, while it lives; else whichever lives."""
        return syncer if syncer is not None and syncer.alive else self.syncer

    def tell(self, event: SyncerEvent, at: SyncerProcess | None = None) -> None:
        """What comes over no connection: a heartbeat, an operator's wish."""
        syncer = self._at(at)
        if syncer is not None:
            syncer.feed(event)

    def contribute(self, answer: Answer, work: Work, at: SyncerProcess | None = None) -> int:
        """Whose contribution of this learner is in that round then, by its tokens; 0: none is."""
        syncer = self._at(at)
        if syncer is None or syncer.over:
            return 0
        before = dict(syncer.core.rejected) if self._recovery is not None else {}
        syncer.contribute(answer, work)
        if self._recovery is not None and syncer is self.syncer:
            after = syncer.core.rejected
            self._recovery.heard(answer, next((why for why in after if after[why] != before.get(why, 0)), None))
        return syncer.core.tokens_taken(answer) if syncer.alive else 0

    def seed(self, learner: LearnerId, incarnation: Incarnation, at: SyncerProcess | None = None) -> None:
        syncer = self._at(at)
        if syncer is not None:
            syncer.seed(learner, incarnation)

    def serve(self, fragment: Fragment, at: SyncerProcess | None = None) -> Content | None:
        """The published value; None when nobody serves it."""
        syncer = self._at(at)
        return None if syncer is None else syncer.published.get(fragment)

    def process_at(self, address: str) -> LearnerProcess | None:
        """Whoever gives its state away there, dead or alive."""
        return next((process for process in self.processes if process.core.session == address), None)

    def new_number(self) -> int:
        """Of a value: no two have the same."""
        self._contents += 1
        return self._contents

    def seed_content(self, fragment: Fragment) -> Content:
        return Content(number=self.new_number(), fragment=fragment, version=Version(0))

    def trained_by(self, name: str) -> int:
        """Tokens that all processes of this name have trained on."""
        return sum(process.trained for process in self.processes if process.name == name)

    # ── the calm ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _calm(self) -> None:
        """All faults end, and whatever is dead is started again."""
        now = self.engine.now
        self.fate.relents()
        for road in self.roads.values():
            road.blocked_until = road.stormy_until = now
        self._recovery = Recovery(self)
        self.launcher.start_syncer()
        if self.goes_on_elsewhere:
            self.goes_on_elsewhere = False
            self.tell(GoesOnElsewhere(goes_on=False))
        for process in self.processes:
            process.sick_until = process.huge_until = process.backward_until = now
            process.go_on()
            process.stir()
            if process.parting:
                process.leave()
        for plan in self.plan.learners:
            if plan.name not in self.fleet:
                self.launcher.start(plan)
            elif self.fleet[plan.name].refusal is None:
                self.launcher.start_again(plan)
        self._look_whether_well()

    def _look_whether_well(self) -> None:
        assert self._recovery is not None
        if self._recovery.missing():
            self.engine.after(0.5, self._look_whether_well)
        else:
            self.engine.stop()
