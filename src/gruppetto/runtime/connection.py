"""What waits to be sent to one learner, bounded, so that a slow learner never blocks another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gruppetto.protocol.messages import Announcement, Marker
from gruppetto.protocol.units import Incarnation, LearnerId
from gruppetto.runtime.wire import CloseCode, Frame, encode_frame

__all__ = ["MAX_WAITING", "Closing", "Connection"]

MAX_WAITING = 256
"""Frames that may pile up. A learner that reads at all is never so far behind: announcements are merged into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The connection is to be closed, after what still waits has been sent."""

    code: int
    text: str


class Connection:
    """One learner's control connection, seen by the service. The transport empties it with :meth:`take`.

    >>> from gruppetto.protocol.units import Epoch, Fragment, Round, Version
    >>> link = Connection(learner=LearnerId("a"), session="s1", peer="memory")
    >>> for t in (1, 2):
    ...     link.put(Announcement(epoch=Epoch(1), round=Round(t), versions=((Fragment(0), Version(t)),)))
    >>> len(link.take())
    1
    """

    def __init__(self, *, learner: LearnerId, session: str, peer: str) -> None:
        self.learner, self.session, self.peer = learner, session, peer
        self.incarnation = Incarnation(0)
        """Set by the Welcome; 0 before."""
        self.closing: Closing | None = None
        self.on_change: Callable[[], None] = _nobody_listens
        """Called when there is something to take, or the connection is to be closed."""
        self._waiting: list[Frame] = []

    def put(self, frame: Frame) -> None:
        """Queue a frame. An announcement is merged into one that still waits, the newest version per fragment; never
        past a marker, whose place among them is what it says."""
        if self.closing is not None:
            return
        if isinstance(frame, Announcement):
            for i, waiting in reversed(list(enumerate(self._waiting))):
                if isinstance(waiting, Marker):
                    break
                if isinstance(waiting, Announcement):
                    self._waiting[i] = _merged(waiting, frame)
                    return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            self.close(CloseCode.TOO_SLOW, f"{MAX_WAITING} frames were waiting to be read")
            return
        self._waiting.append(frame)
        self.on_change()

    def close(self, code: int, text: str) -> None:
        """Close after what waits has been sent. The first reason counts."""
        if self.closing is None:
            self.closing = Closing(code=code, text=text)
            self.on_change()

    def take(self) -> list[bytes]:
        """Everything that waits, encoded, in order."""
        frames, self._waiting = self._waiting, []
        return [encode_frame(frame) for frame in frames]


def _merged(old: Announcement, new: Announcement) -> Announcement:
    return Announcement(
        epoch=new.epoch,
        round=max(old.round, new.round),
        versions=tuple(sorted({**dict(old.versions), **dict(new.versions)}.items())),
        finished=old.finished or new.finished,
    )


def _nobody_listens() -> None:
    pass
