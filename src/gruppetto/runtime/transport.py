"""How a learner reaches its syncer, whatever lies between: HTTP (http_server) or nothing at all (memory).

Both sides see encoded frames and raw bodies only, so that what works in memory works on the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gruppetto.numerics.codec import Buffer
from gruppetto.protocol.messages import Answer, Heartbeat
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.wire import Frame, HelloFrame

__all__ = ["ControlLink", "Download", "SyncerLink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A published fragment as it comes off the wire."""

    fragment: Fragment
    version: Version
    codec: str
    body: Buffer
    checksum: int
    """CRC-32 of the body."""


class ControlLink(Protocol):
    """An open control connection, seen by the learner."""

    def send(self, frame: Frame) -> None: ...

    def receive(self) -> list[Frame]:
        """Every frame that has come since the last call, in order."""
        ...

    def close(self) -> None: ...


class SyncerLink(Protocol):
    """What a learner can ask of its syncer. A refused request raises :class:`ProtocolError` with the syncer's text."""

    def connect(self, frame: HelloFrame) -> ControlLink: ...

    def heartbeat(self, heartbeat: Heartbeat) -> None: ...

    def contribute(self, answer: Answer, codec: str, body: Buffer) -> str:
        """Upload a contribution; "taken" or "dropped"."""
        ...

    def seed(self, learner: LearnerId, incarnation: Incarnation, fragment: Fragment, body: Buffer) -> None: ...

    def fetch(self, fragment: Fragment, version: Version) -> Download:
        """Version ``version`` of a published fragment, or a newer one."""
        ...
