"""What goes wrong in a fuzzed world: each fault of its plan in its turn, and traps that wait for their moment.

What hits the syncer, its disk or everybody is done here; what hits one learner, in :mod:`gruppetto.chaos.harm`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from gruppetto.chaos.cut import Cut
from gruppetto.chaos.harm import harm
from gruppetto.chaos.plan import Fault, FaultKind
from gruppetto.chaos.syncer import SyncerProcess
from gruppetto.protocol.events import TakeCheckpoint
from gruppetto.protocol.state import without_the_absent

if TYPE_CHECKING:
    from gruppetto.chaos.world import World

__all__ = ["Fate"]


class Fate:
    """Of one world, until :meth:`relents`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._trap: Fault | None = None
        """A crash that waits for its moment."""
        self._waits_to_take_over: Fault | None = None
        self._diverges = False
        self._slow_until = 0.0
        self._starts_again_after_s = 0.0
        """When the syncer that has been told to stop is wanted again."""
        self._checkpoints = self._times_gone_back = 0

    def strike(self, fault: Fault) -> None:
        """Its time has come."""
        world = self._world
        if fault.kind in (FaultKind.CRASH_SYNCER, FaultKind.POWER_LOSS):
            if fault.how:
                self._trap = fault
            else:
                self.crash(fault)
            return
        until = world.engine.now + fault.lasts_s
        match fault.kind:
            case FaultKind.DAMAGE | FaultKind.LOST_STATE:
                self._spoil(fault)
            case FaultKind.STOP_SYNCER if world.syncer is not None:
                world.syncer.stop()
                self._starts_again_after_s = fault.lasts_s
            case FaultKind.TAKE_OVER if fault.how:
                self._waits_to_take_over = fault
            case FaultKind.TAKE_OVER:
                self._take_over(fault)
            case FaultKind.PERSIST_FAILS:
                world.disk.failing_until = until
            case FaultKind.SLOW_SYNCER:
                self._slow_until = until
            case FaultKind.DIVERGE:
                self._diverges = True
            case FaultKind.CHECKPOINT:
                self._checkpoints += 1
                world.tell(TakeCheckpoint(mark=f"mark-{self._checkpoints}"))
            case FaultKind.RESUME_ALL if world.disk.newest_cut is not None:
                self._resume_all(world.disk.newest_cut, fault.lasts_s)
            case _ if fault.who in world.fleet:
                harm(world, world.fleet[fault.who], fault)
            case _:
                pass  # it has not joined yet

    def relents(self) -> None:
        """Nothing of it lasts any longer, and no trap is left."""
        world = self._world
        self._trap, self._diverges, self._waits_to_take_over = None, False, None
        world.disk.bad_copies = world.disk.lost_commits = 0
        for elder in world.elders:
            if elder.alive:
                elder.die(silent=False)
        world.disk.failing_until = self._slow_until = world.engine.now

    # ── what the syncer's process asks ───────────────────────────────────────────────────────────────────────────

    @property
    def slowness(self) -> float:
        """How many times as long everything takes now."""
        return 10.0 if self._world.engine.now < self._slow_until else 1.0

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
        self.crash(trap)
        return True

    def commit_begun(self, syncer: SyncerProcess) -> None:
        """A standby may have waited for just this moment."""
        fault = self._waits_to_take_over
        if fault is not None and syncer is self._world.syncer and self._world.disk.commit is not None:
            self._waits_to_take_over, syncer.off_guard = None, True
            self._take_over(fault)

    def has_stopped(self, syncer: SyncerProcess) -> None:
        """Its process has ended in good order, or its patience has."""
        if syncer is self._world.syncer:
            self._world.syncer = None
            self._world.engine.after(self._starts_again_after_s, self._world.launcher.start_syncer)

    # ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────

    def crash(self, fault: Fault) -> None:
        """The syncer dies, alone or with its machine."""
        world = self._world
        if world.syncer is None or world.syncer.over:
            return
        world.syncer.die(silent=fault.kind is FaultKind.POWER_LOSS)
        world.syncer = None
        world.engine.after(fault.lasts_s, world.launcher.start_syncer)

    def _spoil(self, fault: Fault) -> None:
        """The machine goes down, and not everything on its disk can be read when it comes back."""
        world = self._world
        if world.syncer is None or world.syncer.over:
            return
        if fault.kind is FaultKind.DAMAGE:
            world.disk.bad_copies = 2 if fault.how else 1
        else:
            world.disk.lost_commits = 2 if fault.how else 1
        for syncer in [world.syncer, *world.elders]:
            syncer.die(silent=False)
        world.syncer = None
        world.engine.after(fault.lasts_s, world.launcher.start_syncer)

    def _take_over(self, fault: Fault) -> None:
        """The old life does not know of the new one until it looks at the fence.

        Nobody takes over from one that may live while there are no weights: version 0 has no number before it to skip.
        """
        world, old = self._world, self._world.syncer
        if old is None or old.over or world.disk.commit is None:
            return
        world.elders = [elder for elder in world.elders if elder.alive] + [old]
        world.engine.after(fault.lasts_s, lambda: old.die(silent=False) if old.alive else None)
        world.syncer = SyncerProcess(world, alone=False)
        world.syncer.begin()

    def _resume_all(self, cut: Cut, lasts_s: float) -> None:
        """Everything dies; disk, truth and all processes go back to the cut. Only epochs are never used again.

        Now and then somebody survives, behind a wall, and comes back to a run that knows nothing of his last rounds.
        """
        world = self._world
        for syncer in [*world.elders, world.syncer]:
            if syncer is not None and syncer.alive:
                syncer.die(silent=False)
        world.syncer, world.elders = None, []
        self._times_gone_back += 1
        rng = random.Random(f"{world.plan.seed} resume {self._times_gone_back}")
        for process in world.processes:
            process.astray_until = world.disk.epoch
            survives = rng.random() < 0.2 and process.present and not process.core.finished
            if process.alive and not survives:
                process.kill(silent=False)
        self._trap = self._waits_to_take_over = None
        parts = {part.plan: (name, life, part) for (name, life), part in sorted(cut.parts.items())}
        lives = {name: life for name, life, _ in parts.values()}
        state = without_the_absent(cut.state, lives, world.disk.claim_for_nobody())
        world.disk.go_back(state, cut.contents)
        world.watch.roll_back(cut)
        for plan in world.plan.learners:
            if plan.name in parts:
                name, life, part = parts[plan.name]
                process = world.launcher.live(plan, name, part.checkpoint, same_life=True)
                world.watch.resumed(process, life)
            elif plan.name in world.fleet and not world.fleet[plan.name].alive:
                world.launcher.start(plan, how=rng.choice(("", "checkpoint")))
        world.engine.after(lasts_s, world.launcher.start_syncer)
