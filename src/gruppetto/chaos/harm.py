"""What is done to one learner: its process, its connections, what it sends, and what others have heard of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gruppetto.chaos.learner import PARTING_S, LearnerProcess
from gruppetto.chaos.plan import Fault, FaultKind
from gruppetto.chaos.truth import Work
from gruppetto.protocol.messages import Answer, Deferred, Marked, Progress
from gruppetto.runtime.wire import ProgressFrame

if TYPE_CHECKING:
    from gruppetto.chaos.world import World

__all__ = ["harm"]


def harm(world: World, process: LearnerProcess, fault: Fault) -> None:
    """Do to this process what the fault says, from now on for as long as it lasts."""
    until = world.engine.now + fault.lasts_s
    match fault.kind:
        case FaultKind.KILL:
            process.kill(silent=fault.how == "silent")
            again = partial(world.launcher.start_again, process.plan, how=fault.how)
            world.engine.at(until, again)
        case FaultKind.LEAVE:
            then = partial(world.engine.after, fault.lasts_s, partial(world.launcher.start_again, process.plan))
            if fault.how == "storm":
                process.road.stormy_until = world.engine.now + PARTING_S
            process.leave(on_notice=fault.how in ("notice", "storm"), then=then)
        case FaultKind.PAUSE:
            process.pause()
            world.engine.at(until, process.go_on)
        case FaultKind.DOUBLE:
            world.launcher.start(process.plan)
        case FaultKind.CUT if process.wire is not None:
            process.wire.break_off()
        case FaultKind.HALF_OPEN if process.wire is not None:
            process.wire.go_deaf(up=fault.how != "down", down=fault.how != "up")
        case FaultKind.PARTITION:
            _part(world, process, until, holds=fault.how == "holds")
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
                    process.road.carry(partial(_say_again, world, answer, work))
        case FaultKind.GHOST:
            _haunt(world, process)
        case _:
            pass


def _part(world: World, process: LearnerProcess, until: float, *, holds: bool) -> None:
    road, wire = process.road, process.wire
    road.blocked_until, road.holds = until, holds
    world.engine.at(until, process.stir)
    if wire is not None and until - world.engine.now > world.plan.ping_s:
        world.engine.after(world.plan.ping_s, wire.break_off)


def _say_again(world: World, answer: Answer, work: Work) -> None:
    world.contribute(answer, work)


def _haunt(world: World, process: LearnerProcess) -> None:
    """Only what another life has said: the present one may repeat itself."""
    heard = [frame for life in process.record.lives() for frame in life.heard]
    said = [frame for life in process.record.lives() for frame in life.said]
    for frame in heard:
        if getattr(frame, "epoch", process.core.epoch) != process.core.epoch:
            process.hear_ghost(frame)
    syncer = world.syncer
    for frame in said:
        message = frame.progress if isinstance(frame, ProgressFrame) else frame
        if syncer is None or not isinstance(message, Progress | Deferred | Marked):
            continue
        member = syncer.core.members.get(message.learner)
        present = (syncer.epoch, member.incarnation if member is not None else 0)
        if (message.epoch, message.incarnation) != present:
            syncer.hear_ghost(frame)
