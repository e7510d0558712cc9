"""A learner's contact with the syncer: a connection that is made again whenever it breaks, and heartbeats beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from gruppetto.chaos.network import Wire
from gruppetto.chaos.plan import LONGEST_PAUSE_S
from gruppetto.protocol.events import LearnerEvent, LinkDown
from gruppetto.protocol.messages import Heartbeat, Refusal
from gruppetto.runtime.wire import Frame, WelcomeFrame

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess
    from gruppetto.chaos.syncer import SyncerProcess

__all__ = ["Contact"]

FIRST_PAUSE_S = 0.1


class Contact:
    """Of one process. ``feed`` takes what is heard to the core."""

    def __init__(self, process: LearnerProcess, *, rng: random.Random, feed: Callable[[LearnerEvent], object]) -> None:
        self._process, self._world, self._rng, self._feed = process, process.world, rng, feed
        self.wire: Wire | None = None
        self._pause_s = FIRST_PAUSE_S

    @property
    def at(self) -> SyncerProcess | None:
        """The life of the syncer that it is connected to."""
        return self.wire.syncer if self.wire is not None else None

    def on_frame(self, wire: Wire, frame: Frame) -> None:
        self._process.awake(lambda: self._hear(wire, frame))

    def on_closed(self, wire: Wire) -> None:
        self._process.awake(lambda: self._lose(wire))

    def dial(self) -> None:
        process, world = self._process, self._world
        if not process.present or self.wire is not None:
            return
        syncer = world.dialled(self._rng)
        if syncer is None or process.road.blocked:
            self._dial_again()
            return
        self.wire = Wire(process, syncer, world.engine, world.plan.ping_s)
        self.wire.open(process.core.hello())

    def give_up(self, wire: Wire) -> None:
        """Nothing comes of this connection any more: another one is made."""
        if self._process.alive and wire is self.wire:
            wire.hang_up()
            self.on_closed(wire)

    def beat(self) -> None:
        """On a connection of its own; one that cannot be sent now is given up."""
        process, world = self._process, self._world
        if process.present:
            if process.core.linked and not process.road.blocked and world.syncer is not None:
                beat, at = Heartbeat(learner=process.name, incarnation=process.core.incarnation), self.at
                process.road.carry(lambda: world.tell(beat, at))
            process.later(world.setting.liveness_s / 4, self.beat)

    def _dial_again(self) -> None:
        self._process.later(self._pause_s * self._rng.uniform(0.5, 1.0), self.dial)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _hear(self, wire: Wire, frame: Frame) -> None:
        process = self._process
        if wire is not self.wire or process.left:
            return
        process.record.heard.append(frame)
        match frame:
            case WelcomeFrame(welcome=said) | (Refusal() as said) if process.core.knows_newer(said):
                self.give_up(wire)  # somebody has taken over from it
            case WelcomeFrame(welcome=welcome):
                self._world.watch.welcomed(process, welcome)
                wire.welcomed, self._pause_s = True, FIRST_PAUSE_S
                process.record.turn((welcome.epoch, welcome.incarnation))
                process.welcomed_at = max(process.welcomed_at, welcome.round)
                if process.core.is_newborn(welcome):
                    process.backlog.new_life()
                    process.holdings.another_life()
                self._feed(welcome)
            case Refusal():
                process.refusal = frame
                self._feed(frame)
                self._world.launcher.was_refused(process, frame.reason)
            case _:
                self._feed(frame)  # type: ignore[arg-type]

    def _lose(self, wire: Wire) -> None:
        process = self._process
        if wire is not self.wire:
            return
        self.wire = None
        process.transfers.broke_off()
        if wire.welcomed:
            self._feed(LinkDown())
            process.backlog.link_down()
        self._dial_again()
