"""Who starts the processes of a fuzzed world, and starts them again: what a supervisor would do, and no more."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from gruppetto.chaos.invariants import BrokenWorldError
from gruppetto.chaos.learner import LearnerProcess
from gruppetto.chaos.plan import LearnerPlan
from gruppetto.chaos.record import Checkpoint
from gruppetto.chaos.syncer import SyncerProcess
from gruppetto.protocol.messages import RefusalReason
from gruppetto.protocol.units import LearnerId

if TYPE_CHECKING:
    from gruppetto.chaos.world import World

__all__ = ["Launcher"]

VISITS = 0.5
"""How many of those who have been there to the end come again."""
VISIT_S = 6.0
"""How long after it at most: before the books are closed, or behind that."""


class Launcher:
    """Of one world. It knows exit codes and refusals, and nothing of rounds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._visits = random.Random(f"{world.plan.seed} visits")

    def start_syncer(self) -> None:
        """Unless one lives."""
        if self._world.syncer is None:
            self._world.syncer = SyncerProcess(self._world)
            self._world.syncer.begin()

    def start(self, plan: LearnerPlan, how: str = "") -> None:
        """A process for this learner. ``how``: see :data:`~gruppetto.chaos.plan.RETURNS`."""
        before = self._world.fleet.get(plan.name)
        name = before.name if before is not None else plan.name
        if how == "renamed":
            name = LearnerId(f"{plan.name}.{len(self._world.processes)}")
        checkpoint = before.checkpoint if before is not None and how == "checkpoint" else None
        own = before.checkpoint if before is not None and not how else None
        cut = self._world.disk.newest_cut
        if how == "part" and cut is not None:
            mine = [part for (who, _), part in sorted(cut.parts.items()) if who == name]
            if mine:
                self.live(plan, name, mine[-1].checkpoint, same_life=True)
                return
        self.live(plan, name, checkpoint, own=own)

    def start_again(self, plan: LearnerPlan, how: str = "") -> None:
        """Unless somebody has done so meanwhile, or the run is over for it."""
        process = self._world.fleet[plan.name]
        needed = self._world.goes_on_elsewhere or not process.core.finished
        if (not process.alive or process.left) and needed:
            self.start(plan, how)

    def came_to_the_end(self, process: LearnerProcess) -> None:
        """Some supervisors start again whoever ends, the run being over or not."""
        if self._visits.random() < VISITS:
            how = self._visits.choice(("", "checkpoint", "renamed"))
            self._world.engine.after(self._visits.uniform(0.0, VISIT_S), lambda: self._visit(process, how))

    def _visit(self, process: LearnerProcess, how: str) -> None:
        if self._world.fleet[process.plan.name] is process:  # nobody has done so meanwhile
            self.start(process.plan, how)

    def live(
        self,
        plan: LearnerPlan,
        name: str,
        checkpoint: Checkpoint | None,
        *,
        same_life: bool = False,
        own: Checkpoint | None = None,
    ) -> LearnerProcess:
        """A new process, under whatever name; see :class:`~gruppetto.chaos.learner.LearnerProcess` for the rest."""
        session = f"{plan.name}-{len(self._world.processes)}"
        process = LearnerProcess(
            plan, self._world, name=name, session=session, checkpoint=checkpoint, same_life=same_life, own=own
        )
        self._world.fleet[plan.name] = process
        self._world.processes.append(process)
        process.start()
        return process

    def was_refused(self, process: LearnerProcess, reason: RefusalReason) -> None:
        """One that found the run full is started again. Raises
        :class:`~gruppetto.chaos.invariants.BrokenWorldError` where nobody should have been refused."""
        world = self._world
        heirs = world.watch.heirs(process)
        heir = next((p for p in reversed(world.processes) if p.core.session in heirs), process)
        match reason:
            case RefusalReason.SUPERSEDED if heir is not process:
                if world.fleet[process.plan.name] is process:
                    world.fleet[process.plan.name] = heir
                    if not heir.alive:  # its hello came after it was dead
                        world.engine.after(world.setting.liveness_s, lambda: self.start_again(process.plan))
            case RefusalReason.FULL:
                process.kill(silent=False)
                world.engine.after(world.setting.liveness_s, lambda: self.start_again(process.plan))
            case RefusalReason.AHEAD if not world.watch.is_of_this_run(process):
                self._begin_afresh(process)
            case RefusalReason.AHEAD | RefusalReason.SUPERSEDED if process.astray_until:
                self._begin_afresh(process)
            case _:
                raise BrokenWorldError("rightly-refused", f"{process.name}: {process.refusal}")

    def _begin_afresh(self, process: LearnerProcess) -> None:
        """What it holds is of no use to anybody: its launcher starts it again without."""
        process.kill(silent=False)
        if self._world.fleet[process.plan.name] is process:
            self.live(process.plan, process.name, None)
