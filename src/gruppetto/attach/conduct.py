"""What a step boundary is to the training thread, whether a learner has one rank or many.

A boundary begins with :meth:`Conduct.meet` and ends with :meth:`Conduct.release`; between them nobody trains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from gruppetto.attach.hands import Hands
from gruppetto.protocol.events import LearnerEvent
from gruppetto.runtime.orders import RankOrder, Word

__all__ = ["GOES_ON", "LENGTH", "NOBODY", "Alone", "Conduct", "Ends", "Report", "Standing"]

NOBODY = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a rank stands, as numbers of which the lowest of all ranks counts."""

    failed_rank: int = NOBODY
    """Its number, if it has failed."""
    stays: bool = True
    """It has had no notice."""
    loops: bool = True
    """It is in its loop, not on its way out."""
    settled: bool = True
    """Nothing is on its way down."""
    idle: bool = True
    """Nothing is on its way up."""
    fetched: int = NOBODY
    """The last errand for a peer's state that it has done (:mod:`gruppetto.runtime.companions`)."""
    lacks: int = 0
    """... and the last one that it could not do."""

    @classmethod
    def of(cls, numbers: list[int]) -> Standing:
        rank, stays, loops, settled, idle, fetched, lacks = numbers
        return cls(
            failed_rank=rank,
            stays=bool(stays),
            loops=bool(loops),
            settled=bool(settled),
            idle=bool(idle),
            fetched=fetched,
            lacks=lacks,
        )

    def numbers(self) -> list[int]:
        flags = map(int, (self.stays, self.loops, self.settled, self.idle))
        return [self.failed_rank, *flags, self.fetched, self.lacks]


LENGTH = len(Standing().numbers())
Report = Standing
"""The lowest of all: how the learner stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How a boundary ends the learner, if it does."""

    parted: bool = False
    """It has left the run on notice."""
    closing: bool = False
    """A rank has left its loop."""
    failure: str = ""
    """Why all ranks end now."""


GOES_ON = Ends()


class Conduct(ABC):
    """Who takes part in a boundary. ``poll_s``: while something is waited for, two of them are no further apart."""

    poll_s: float
    word: Word | None = None
    """Of many ranks: how the learner stands, as all ranks see it."""

    @abstractmethod
    def meet(self, *, loops: bool = True) -> Report:
        """Begin a boundary, after the one before; how the learner stands. ``loops``: it is not on its way out."""

    @abstractmethod
    def release(self, *events: LearnerEvent, again: Callable[[], bool] | None = None, ends: Ends = GOES_ON) -> bool:
        """End the boundary: take these events to the core, and do what comes of them.

        ``again``, asked when the core has decided, says whether another boundary follows at once, which is returned.
        The lock is held from the decision until it is carried out: what is asked for meanwhile finds things as the core
        says.
        """

    @abstractmethod
    def order(self, order: RankOrder) -> None:
        """All other ranks are to do this too; the lock is held."""

    @abstractmethod
    def close(self, failure: str) -> None:
        """This rank leaves. If others wait for its word, they hear ``failure``."""


class Alone(Conduct):
    """A learner of one rank: nobody has to be told."""

    poll_s = 0.5

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    def meet(self, *, loops: bool = True) -> Report:
        return Report()

    def release(self, *events: LearnerEvent, again: Callable[[], bool] | None = None, ends: Ends = GOES_ON) -> bool:
        with self._hands.client.news:
            for event in events:
                self._hands.feed(event)
            return again is not None and again()

    def order(self, order: RankOrder) -> None:
        pass

    def close(self, failure: str) -> None:
        pass
