"""The way between a learner and the syncer, and what can be wrong with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from gruppetto.protocol.messages import Hello
from gruppetto.runtime.connection import Closing, Connection
from gruppetto.runtime.wire import Frame
from gruppetto.sim import Engine, Link

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess
    from gruppetto.chaos.syncer import SyncerProcess

__all__ = ["Road", "Wire"]

STORM_LOSS, STORM_TWICE, STORM_LATE_S = 0.3, 0.4, 3.0
"""In a storm: shares of the bodies that are lost, or arrive twice, and how late they are at most."""


class Road:
    """Everything between one learner's machine and the syncer. Bodies overtake each other, and control messages."""

    def __init__(self, engine: Engine, link: Link, rng: random.Random) -> None:
        self._engine, self._link, self._rng = engine, link, rng
        self.blocked_until = self.stormy_until = 0.0
        self.holds = False
        """While blocked, what is sent is held back on the way instead of waiting at the sender."""

    @property
    def blocked(self) -> bool:
        return self._engine.now < self.blocked_until

    def arrival(self) -> float:
        """When something sent now arrives: not before the way is free again."""
        return max(self._engine.now, self.blocked_until) + self._link.latency_s * self._rng.uniform(1.0, 1.5)

    def carry(
        self,
        do: Callable[[], None],
        *,
        delivered: Callable[[], None] | None = None,
        lost: Callable[[], None] | None = None,
        may_repeat: bool = False,
    ) -> None:
        """Take a body or a request across, and say so to the sender a way later; ``lost``: it does not get there."""
        arrival = self.arrival()
        if self._engine.now < self.stormy_until:
            arrival += self._rng.uniform(0.0, STORM_LATE_S)
            if self._rng.random() < STORM_LOSS:
                if lost is not None:
                    self._engine.at(arrival, lost)
                return
            if may_repeat and self._rng.random() < STORM_TWICE:
                self._engine.at(arrival + self._rng.uniform(0.0, STORM_LATE_S), do)
        self._engine.at(arrival, do)
        if delivered is not None:
            self._engine.at(arrival + self._link.latency_s, delivered)


class Wire(Connection):
    """One control connection with both its ends. What is sent one way arrives in order, or not at all."""

    def __init__(self, process: LearnerProcess, syncer: SyncerProcess, engine: Engine, ping_s: float) -> None:
        super().__init__(learner=process.name, session=process.core.session, peer="virtual")
        self.process, self.syncer = process, syncer
        self._engine, self._ping_s = engine, ping_s
        self._up_at = self._down_at = 0.0
        self._broken = self._deaf_up = self._deaf_down = False
        self.welcomed = False
        """The learner has had its Welcome on it."""

    @property
    def is_open(self) -> bool:
        """As far as the syncer's end knows."""
        return self.closing is None and not self._broken

    # ── the syncer's end ─────────────────────────────────────────────────────────────────────────────────────────

    def put(self, frame: Frame) -> None:
        if self.closing is None:
            self._down(lambda: self.process.contact.on_frame(self, frame))

    def close(self, code: int, text: str) -> None:
        if self.closing is None:
            self.closing = Closing(code=code, text=text)
            self._down(lambda: self.process.contact.on_closed(self))
            self._engine.at(self._down_at, lambda: self.syncer.lost(self))

    # ── the learner's end ────────────────────────────────────────────────────────────────────────────────────────

    def open(self, hello: Hello) -> None:
        """The first thing said on it."""
        self._up(lambda: self.syncer.greet(self, hello))

    def up(self, frame: Frame) -> None:
        """Say something to the syncer."""
        self._up(lambda: self.syncer.receive(self, frame))

    def hang_up(self) -> None:
        """The learner's end is closed, by its process or by the death of it."""
        self._up(lambda: self.syncer.lost(self))

    # ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────

    def break_off(self) -> None:
        """Both ends notice at once, and what is on its way is lost."""
        self._broken = True
        self._engine.after(0.0, lambda: self.process.contact.on_closed(self))
        self._engine.after(0.0, lambda: self.syncer.lost(self))

    def end_of_syncer(self) -> None:
        """The syncer's process has died: its host closes the connection, after what was sent."""
        self._down(lambda: self.process.contact.on_closed(self))

    def go_deaf(self, *, up: bool = True, down: bool = True) -> None:
        """Swallow everything from now on; both ends give up when nothing has come for a while."""
        self._deaf_up, self._deaf_down = self._deaf_up or up, self._deaf_down or down
        self._engine.after(self._ping_s, self.break_off)

    def _up(self, do: Callable[[], None]) -> None:
        if not (self._deaf_up or self._broken):
            self._up_at = max(self._up_at, self.process.road.arrival())
            self._engine.at(self._up_at, lambda: None if self._broken else do())

    def _down(self, do: Callable[[], None]) -> None:
        if not (self._deaf_down or self._broken):
            self._down_at = max(self._down_at, self.process.road.arrival())
            self._engine.at(self._down_at, lambda: None if self._broken else do())
