"""One fuzzed world: the shipping cores and shells in virtual time, and a plan of what goes wrong."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from functools import partial

from gruppetto.chaos.cut import Cut, Part
from gruppetto.chaos.disk import Disk
from gruppetto.chaos.learner import PARTING_S, LearnerProcess
from gruppetto.chaos.network import Road
from gruppetto.chaos.observers import BrokenWorldError, Watch
from gruppetto.chaos.plan import Fault, FaultKind, LearnerPlan, Plan
from gruppetto.chaos.record import Checkpoint, Record
from gruppetto.chaos.recovery import Recovery
from gruppetto.chaos.syncer import SyncerProcess
from gruppetto.chaos.truth import Content, Work
from gruppetto.protocol.actions import LearnerAction, SyncerAction
from gruppetto.protocol.events import LearnerEvent, SyncerEvent, TakeCheckpoint
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer, Deferred, Marked, Progress, RefusalReason
from gruppetto.protocol.state import without_the_absent
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
        self._recovery: Recovery | None = None
        self._contents = self._checkpoints = 0
        self._starts_again_after_s = 0.0
        self._times_gone_back = 0
        self._slow_until = 0.0
        self._diverges = False
        self._trap: Fault | None = None
        """A crash that waits for its moment."""
        self._waits_to_take_over: Fault | None = None

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

    def dialled(self, rng: random.Random) -> SyncerProcess | None:
        """Whoever answers: while an old life goes on beside the new one, either."""
        lives = [life for life in [*self.elders, self.syncer] if life is not None and life.alive]
        return rng.choice(lives) if len(lives) > 1 else self.syncer

    def _at(self, syncer: SyncerProcess | None) -> SyncerProcess | None:
        """The one that was dialled, while it lives; else whichever lives."""
        return syncer if syncer is not None and syncer.alive else self.syncer

    def tell(self, event: SyncerEvent, at: SyncerProcess | None = None) -> None:
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

    def _say_again(self, answer: Answer, work: Work) -> None:
        self.contribute(answer, work)

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

    def commit_begun(self, syncer: SyncerProcess) -> None:
        """A standby may have waited for just this moment."""
        fault = self._waits_to_take_over
        if fault is not None and syncer is self.syncer and self.disk.commit is not None:
            self._waits_to_take_over, syncer.off_guard = None, True
            self._take_over(fault)

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
        heirs = self.watch.heirs(process)
        heir = next((p for p in reversed(self.processes) if p.core.session in heirs), process)
        match reason:
            case RefusalReason.SUPERSEDED if heir is not process:
                if self.fleet[process.plan.name] is process:
                    self.fleet[process.plan.name] = heir
                    if not heir.alive:  # its hello came after it was dead
                        self.engine.after(self.setting.liveness_s, lambda: self._start_again(process.plan))
            case RefusalReason.FULL:
                process.kill(silent=False)
                self.engine.after(self.setting.liveness_s, lambda: self._start_again(process.plan))
            case RefusalReason.AHEAD if not self.watch.is_of_this_run(process):
                self._begin_afresh(process)
            case RefusalReason.AHEAD | RefusalReason.SUPERSEDED if process.astray_until:
                self._begin_afresh(process)
            case RefusalReason.FINISHED if self.setting.rounds is not None:
                process.left = True
            case _:
                raise BrokenWorldError("rightly-refused", f"{process.name}: {process.refusal}")

    def _begin_afresh(self, process: LearnerProcess) -> None:
        """What it holds is of no use to anybody: its launcher starts it again without."""
        process.kill(silent=False)
        if self.fleet[process.plan.name] is process:
            self._live(process.plan, process.name, None)

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
            case FaultKind.DAMAGE | FaultKind.LOST_STATE:
                self._spoil(fault)
            case FaultKind.STOP_SYNCER if self.syncer is not None:
                self.syncer.stop()
                self._starts_again_after_s = fault.lasts_s
            case FaultKind.TAKE_OVER if fault.how:
                self._waits_to_take_over = fault
            case FaultKind.TAKE_OVER:
                self._take_over(fault)
            case FaultKind.PERSIST_FAILS:
                self.disk.failing_until = until
            case FaultKind.SLOW_SYNCER:
                self._slow_until = until
            case FaultKind.DIVERGE:
                self._diverges = True
            case FaultKind.CHECKPOINT:
                self._checkpoints += 1
                self.tell(TakeCheckpoint(mark=f"mark-{self._checkpoints}"))
            case FaultKind.RESUME_ALL if self.disk.newest_cut is not None:
                self._resume_all(self.disk.newest_cut, fault.lasts_s)
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
                then = partial(self.engine.after, fault.lasts_s, partial(self._start_again, process.plan))
                if fault.how == "storm":
                    process.road.stormy_until = self.engine.now + PARTING_S
                process.leave(on_notice=fault.how in ("notice", "storm"), then=then)
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
            case FaultKind.HUGE:
                process.huge_until = until
            case FaultKind.BACKWARD:
                process.backward_until = until
            case FaultKind.REPLAY:
                for life in process.record.lives():
                    for answer, work in life.contributed:
                        process.road.carry(partial(self._say_again, answer, work))
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
            if syncer is None or not isinstance(message, Progress | Deferred | Marked):
                continue
            member = syncer.core.members.get(message.learner)
            present = (syncer.epoch, member.incarnation if member is not None else 0)
            if (message.epoch, message.incarnation) != present:
                syncer.hear_ghost(frame)

    def _spoil(self, fault: Fault) -> None:
        """The machine goes down, and not everything on its disk can be read when it comes back."""
        if self.syncer is None or self.syncer.over:
            return
        if fault.kind is FaultKind.DAMAGE:
            self.disk.bad_copies = 2 if fault.how else 1
        else:
            self.disk.lost_commits = 2 if fault.how else 1
        for syncer in [self.syncer, *self.elders]:
            syncer.die(silent=False)
        self.syncer = None
        self.engine.after(fault.lasts_s, self._start_syncer)

    def _take_over(self, fault: Fault) -> None:
        """The old life does not know of the new one until it looks at the fence.

        Nobody takes over from one that may live while there are no weights: version 0 has no number before it to skip.
        """
        old = self.syncer
        if old is None or old.over or self.disk.commit is None:
            return
        self.elders = [elder for elder in self.elders if elder.alive] + [old]
        self.engine.after(fault.lasts_s, lambda: old.die(silent=False) if old.alive else None)
        self.syncer = SyncerProcess(self, alone=False)
        self.syncer.begin()

    def _crash(self, fault: Fault) -> None:
        if self.syncer is None or self.syncer.over:
            return
        self.syncer.die(silent=fault.kind is FaultKind.POWER_LOSS)
        self.syncer = None
        self.engine.after(fault.lasts_s, self._start_syncer)

    def has_stopped(self, syncer: SyncerProcess) -> None:
        """Its process has ended in good order, or its patience has."""
        if syncer is self.syncer:
            self.syncer = None
            self.engine.after(self._starts_again_after_s, self._start_syncer)

    def _resume_all(self, cut: Cut, lasts_s: float) -> None:
        """Everything dies; disk, truth and all processes go back to the cut. Only epochs are never used again.

        Now and then somebody survives, behind a wall, and comes back to a run that knows nothing of his last rounds.
        """
        for syncer in [*self.elders, self.syncer]:
            if syncer is not None and syncer.alive:
                syncer.die(silent=False)
        self.syncer, self.elders = None, []
        self._times_gone_back += 1
        rng = random.Random(f"{self.plan.seed} resume {self._times_gone_back}")
        for process in self.processes:
            process.astray_until = self.disk.epoch
            survives = rng.random() < 0.2 and process.present and not process.core.finished
            if process.alive and not survives:
                process.kill(silent=False)
        self._trap = self._waits_to_take_over = None
        parts = {part.plan: (name, life, part) for (name, life), part in sorted(cut.parts.items())}
        lives = {name: life for name, life, _ in parts.values()}
        state = without_the_absent(cut.state, lives, self.disk.claim_for_nobody())
        self.disk.go_back(state, cut.contents)
        self.watch.roll_back(cut)
        for plan in self.plan.learners:
            if plan.name in parts:
                name, life, part = parts[plan.name]
                self._live(plan, name, part.checkpoint, same_life=True)
                self.watch.resumed(self.processes[-1], life)
            elif plan.name in self.fleet and not self.fleet[plan.name].alive:
                self._start(plan, how=rng.choice(("", "checkpoint")))
        self.engine.after(lasts_s, self._start_syncer)

    # ── coming to life ───────────────────────────────────────────────────────────────────────────────────────────

    def _start_syncer(self) -> None:
        if self.syncer is None:
            self.syncer = SyncerProcess(self)
            self.syncer.begin()

    def _start(self, plan: LearnerPlan, how: str = "") -> None:
        before = self.fleet.get(plan.name)
        name = before.name if before is not None else plan.name
        if how == "renamed":
            name = LearnerId(f"{plan.name}.{len(self.processes)}")
        checkpoint = before.checkpoint if before is not None and how == "checkpoint" else None
        own = before.checkpoint if before is not None and not how else None
        cut = self.disk.newest_cut
        if how == "part" and cut is not None:
            mine = [part for (who, _), part in sorted(cut.parts.items()) if who == name]
            if mine:
                self._live(plan, name, mine[-1].checkpoint, same_life=True)
                return
        self._live(plan, name, checkpoint, own=own)

    def _live(
        self,
        plan: LearnerPlan,
        name: str,
        checkpoint: Checkpoint | None,
        *,
        same_life: bool = False,
        own: Checkpoint | None = None,
    ) -> None:
        session = f"{plan.name}-{len(self.processes)}"
        process = LearnerProcess(
            plan, self, name=name, session=session, checkpoint=checkpoint, same_life=same_life, own=own
        )
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
        self._trap, self._diverges, self._waits_to_take_over = None, False, None
        self.disk.bad_copies = self.disk.lost_commits = 0
        for elder in self.elders:
            if elder.alive:
                elder.die(silent=False)
        self.disk.failing_until = self._slow_until = now
        for road in self.roads.values():
            road.blocked_until = road.stormy_until = now
        self._recovery = Recovery(self)
        self._start_syncer()
        for process in self.processes:
            process.sick_until = process.huge_until = process.backward_until = now
            process.go_on()
            process.stir()
            if process.parting:
                process.leave()
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
