"""One fuzzed world: the shipping cores and shells in virtual time, and a plan of what goes wrong."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial

from gruppetto.chaos.disk import Disk
from gruppetto.chaos.learner import LearnerProcess
from gruppetto.chaos.network import Road
from gruppetto.chaos.observers import BrokenWorldError, Watch
from gruppetto.chaos.plan import Fault, FaultKind, LearnerPlan, Plan
from gruppetto.chaos.record import Record
from gruppetto.chaos.recovery import Recovery
from gruppetto.chaos.syncer import SyncerProcess
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import LearnerAction, SyncerAction
from gruppetto.protocol.events import LearnerEvent, SyncerEvent
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer, Deferred, Progress, RefusalReason
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.wire import ProgressFrame
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
        trace: TraceWriter | None = None,
    ) -> None:
        self.plan, self.setting = plan, plan.setting
        self.make_learner, self.make_syncer = make_learner, make_syncer
        self.trace = trace
        self.engine = Engine()
        self.disk = Disk()
        self.watch = Watch(self)
        self.events = 0
        self.digest = 0
        """Of the whole history: the same plan gives the same."""
        self.syncer: SyncerProcess | None = None
        self.roads = {
            a.name: Road(self.engine, a.link, random.Random(f"{plan.seed} road {a.name}")) for a in plan.learners
        }
        self.records = {learner.name: Record() for learner in plan.learners}
        self.fleet: dict[str, LearnerProcess] = {}
        """The newest process of every learner in the plan."""
        self.processes: list[LearnerProcess] = []
        self._recovery: Recovery | None = None
        self._contents = 0
        self._slow_until = 0.0
        self._diverges = False
        self._trap: Fault | None = None
        """A crash that waits for its moment."""

    def run(self) -> None:
        """Live through the plan. Raises whatever is found wrong."""
        self._start_syncer()
        for learner in self.plan.learners:
            self.engine.at(learner.joins_at_s, partial(self._start, learner))
        for fault in self.plan.faults:
            self.engine.at(fault.at_s, partial(self._strike, fault))
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

    def tell(self, event: SyncerEvent) -> None:
        """To whichever syncer lives."""
        if self.syncer is not None:
            self.syncer.feed(event)

    def contribute(self, answer: Answer, work: Work) -> None:
        syncer = self.syncer
        if syncer is None or syncer.over:
            return
        before = dict(syncer.core.rejected) if self._recovery is not None else {}
        syncer.contribute(answer, work)
        if self._recovery is not None:
            after = syncer.core.rejected
            self._recovery.heard(answer, next((why for why in after if after[why] != before.get(why, 0)), None))

    def seed(self, learner: LearnerId, incarnation: Incarnation) -> None:
        if self.syncer is not None:
            self.syncer.seed(learner, incarnation)

    def serve(self, fragment: Fragment) -> Content | None:
        """The published value; None when nobody serves it."""
        return None if self.syncer is None else self.syncer.published.get(fragment)

    def new_content(
        self, fragment: Fragment, version: Version, parts: tuple[Work, ...] = (), booked: tuple[int, ...] = ()
    ) -> Content:
        self._contents += 1
        return Content(number=self._contents, fragment=fragment, version=version, parts=parts, booked=booked)

    def trained_by(self, name: str) -> int:
        """Tokens that all processes of this name have trained on."""
        return sum(process.trained for process in self.processes if process.name == name)

    @property
    def slowness(self) -> float:
        return 10.0 if self.engine.now < self._slow_until else 1.0

    def takes_divergence(self) -> bool:
        """The outer step that asks is the one that goes wrong."""
        diverges, self._diverges = self._diverges, False
        return diverges

    def dies_at(self, point: str, last_deed: Callable[[], None] | None = None) -> bool:
        """A crash has waited for this moment, and comes now."""
        trap = self._trap
        if trap is None or trap.how != point:
            return False
        if last_deed is not None:
            last_deed()
        self._trap = None
        self._crash(trap)
        return True

    def was_refused(self, process: LearnerProcess, reason: RefusalReason) -> None:
        """The launcher starts one again that found the run full; a finished run needs no more."""
        heir = next((p for p in self.processes if p.core.session == self.watch.newest.get(process.name)), process)
        match reason:
            case RefusalReason.SUPERSEDED if heir is not process:
                if self.fleet[process.plan.name] is process:
                    self.fleet[process.plan.name] = heir
            case RefusalReason.FULL:
                process.kill(silent=False)
                self.engine.after(self.setting.liveness_s, lambda: self._start_again(process.plan))
            case RefusalReason.FINISHED if self.setting.rounds is not None:
                process.left = True
            case _:
                raise BrokenWorldError("rightly-refused", f"{process.name}: {process.refusal}")

    # ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────

    def _strike(self, fault: Fault) -> None:
        if fault.kind in (FaultKind.CRASH_SYNCER, FaultKind.POWER_LOSS):
            if fault.how:
                self._trap = fault
            else:
                self._crash(fault)
            return
        until = self.engine.now + fault.lasts_s
        match fault.kind:
            case FaultKind.PERSIST_FAILS:
                self.disk.failing_until = until
            case FaultKind.SLOW_SYNCER:
                self._slow_until = until
            case FaultKind.DIVERGE:
                self._diverges = True
            case _ if fault.who in self.fleet:
                self._strike_learner(fault, self.fleet[fault.who], until)
            case _:
                pass  # it has not joined yet

    def _strike_learner(self, fault: Fault, process: LearnerProcess, until: float) -> None:
        match fault.kind:
            case FaultKind.KILL:
                process.kill(silent=fault.how == "silent")
                again = partial(self._start_again, process.plan, how=fault.how)
                self.engine.at(until, again)
            case FaultKind.LEAVE:
                process.leave()
                self.engine.at(until, lambda: self._start_again(process.plan))
            case FaultKind.PAUSE:
                process.pause()
                self.engine.at(until, process.go_on)
            case FaultKind.DOUBLE:
                self._start(process.plan)
            case FaultKind.CUT if process.wire is not None:
                process.wire.break_off()
            case FaultKind.HALF_OPEN if process.wire is not None:
                process.wire.go_deaf(up=fault.how != "down", down=fault.how != "up")
            case FaultKind.PARTITION:
                self._part(process, until, holds=fault.how == "holds")
            case FaultKind.STORM:
                process.road.stormy_until = until
            case FaultKind.NOT_FINITE:
                process.sick_until = until
            case FaultKind.REPLAY:
                for life in process.record.lives():
                    for answer, work in life.contributed:
                        process.road.carry(partial(self.contribute, answer, work))
            case FaultKind.GHOST:
                self._haunt(process)
            case _:
                pass

    def _part(self, process: LearnerProcess, until: float, *, holds: bool) -> None:
        road, wire = process.road, process.wire
        road.blocked_until, road.holds = until, holds
        self.engine.at(until, process.stir)
        if wire is not None and until - self.engine.now > self.plan.ping_s:
            self.engine.after(self.plan.ping_s, wire.break_off)

    def _haunt(self, process: LearnerProcess) -> None:
        """Only what another life has said: the present one may repeat itself."""
        heard = [frame for life in process.record.lives() for frame in life.heard]
        said = [frame for life in process.record.lives() for frame in life.said]
        for frame in heard:
            if getattr(frame, "epoch", process.core.epoch) != process.core.epoch:
                process.hear_ghost(frame)
        syncer = self.syncer
        for frame in said:
            message = frame.progress if isinstance(frame, ProgressFrame) else frame
            if syncer is None or not isinstance(message, Progress | Deferred):
                continue
            member = syncer.core.members.get(message.learner)
            present = (syncer.epoch, member.incarnation if member is not None else 0)
            if (message.epoch, message.incarnation) != present:
                syncer.hear_ghost(frame)

    def _crash(self, fault: Fault) -> None:
        if self.syncer is None or self.syncer.over:
            return
        self.syncer.die(silent=fault.kind is FaultKind.POWER_LOSS)
        self.syncer = None
        self.engine.after(fault.lasts_s, self._start_syncer)

    # ── coming to life ───────────────────────────────────────────────────────────────────────────────────────────

    def _start_syncer(self) -> None:
        if self.syncer is None:
            self.syncer = SyncerProcess(self)
            self.syncer.begin()

    def _start(self, plan: LearnerPlan, how: str = "") -> None:
        before = self.fleet.get(plan.name)
        name = before.name if before is not None else plan.name
        count = len(self.processes)
        if how == "renamed":
            name = LearnerId(f"{plan.name}.{count}")
        checkpoint = before.checkpoint if before is not None and how == "checkpoint" else None
        process = LearnerProcess(plan, self, name=name, session=f"{plan.name}-{count}", checkpoint=checkpoint)
        self.fleet[plan.name] = process
        self.processes.append(process)
        process.start()

    def _start_again(self, plan: LearnerPlan, how: str = "") -> None:
        """Unless somebody has done so meanwhile, or the run is over for it."""
        process = self.fleet[plan.name]
        if (not process.alive or process.left) and not process.core.finished:
            self._start(plan, how)

    def _calm(self) -> None:
        """All faults end, and whatever is dead is started again."""
        now = self.engine.now
        self._trap, self._diverges = None, False
        self.disk.failing_until = self._slow_until = now
        for road in self.roads.values():
            road.blocked_until = road.stormy_until = now
        self._recovery = Recovery(self)
        self._start_syncer()
        for process in self.processes:
            process.sick_until = now
            process.go_on()
            process.stir()
        for plan in self.plan.learners:
            if plan.name not in self.fleet:
                self._start(plan)
            elif self.fleet[plan.name].refusal is None:
                self._start_again(plan)
        self._look_whether_well()

    def _look_whether_well(self) -> None:
        assert self._recovery is not None
        if self._recovery.missing():
            self.engine.after(0.5, self._look_whether_well)
        else:
            self.engine.stop()
