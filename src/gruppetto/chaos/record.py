"""What outlives a learner's process: its checkpoint, and what was said on its road."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gruppetto.chaos.truth import Batch, Content, Work
from gruppetto.protocol.learner import LearnerState
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.wire import Frame

__all__ = ["Checkpoint", "Record"]

RECORDED = 6
"""Messages and contributions kept of each life, to be said once more by a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a learner has saved of itself: its core, and what is in its weights. For itself, or as its part of a
    checkpoint of the whole run."""

    state: LearnerState
    bases: Mapping[Fragment, Content]
    batches: Mapping[Fragment, tuple[Batch, ...]]
    rests: Mapping[Fragment, int] = field(default_factory=dict)
    """Whose rest is owed."""


class Record:
    """What was said lately on a learner's road, by all its lives: a fault may say it once more."""

    def __init__(self) -> None:
        self.heard: deque[Frame] = deque(maxlen=RECORDED)
        self.said: deque[Frame] = deque(maxlen=RECORDED)
        self.contributed: deque[tuple[Answer, Work]] = deque(maxlen=RECORDED)
        self._life = (0, 0)
        self._past: Record | None = None

    def turn(self, life: tuple[int, int]) -> None:
        """An epoch or an incarnation ends: what was said in it is kept apart."""
        if life != self._life:
            self._past = Record()
            self._past.heard, self._past.said, self._past.contributed = self.heard, self.said, self.contributed
            self.heard, self.said, self.contributed = (deque(maxlen=RECORDED) for _ in range(3))
            self._life = life

    def lives(self) -> list[Record]:
        """The last life, if there was one, and the present one."""
        return [self] if self._past is None else [self._past, self]
