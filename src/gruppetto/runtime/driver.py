"""Feed a core, record it, carry out what it decides: the same in every world."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gruppetto.protocol.actions import LearnerAction, SyncerAction
from gruppetto.protocol.events import LearnerEvent, SyncerEvent
from gruppetto.runtime.clock import Clock
from gruppetto.trace.log import TraceWriter

__all__ = ["Core", "Driver"]

E = TypeVar("E", bound=SyncerEvent | LearnerEvent)
A = TypeVar("A", bound=SyncerAction | LearnerAction)
E_contra = TypeVar("E_contra", bound=SyncerEvent | LearnerEvent, contravariant=True)
A_co = TypeVar("A_co", bound=SyncerAction | LearnerAction, covariant=True)


class Core(Protocol[E_contra, A_co]):
    """A :class:`~gruppetto.protocol.syncer.SyncerCore` or a :class:`~gruppetto.protocol.learner.LearnerCore`."""

    def step(self, now: float, event: E_contra) -> Sequence[A_co]: ...


class Driver(Generic[E, A]):
    """Takes one event at a time to the core, puts it and the decisions on the tape, and performs them in order.

    ``feed`` may be called from within ``perform`` (something was done at once): the event then waits until all actions
    of the present one are performed. So the tape does not depend on how fast anything was. One thread only.
    """

    def __init__(
        self, core: Core[E, A], *, who: str, clock: Clock, trace: TraceWriter, perform: Callable[[A], None]
    ) -> None:
        self._core, self._who, self._clock, self._trace, self._perform = core, who, clock, trace, perform
        self._waiting: deque[E] = deque()
        self._busy = False
        self.now = 0.0
        """The time of the newest event."""

    @property
    def busy(self) -> bool:
        """Actions are being performed right now."""
        return self._busy

    def feed(self, event: E) -> None:
        """Take in ``event``, after those that came before."""
        self._waiting.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._step(self._waiting.popleft())
        finally:
            self._busy = False

    def _step(self, event: E) -> None:
        self.now = max(self.now, self._clock.now())
        self._trace.event(self.now, self._who, event)
        actions = self._core.step(self.now, event)
        self._trace.actions(self.now, self._who, actions)
        for action in actions:
            self._perform(action)
