"""A learner's link to its syncer without sockets: the same frames and bodies, handed over at once.

Everything is encoded and decoded as on the wire. What a learner sends is acted on before ``send`` returns; what the
syncer sends waits until ``receive``. So the order of delivery is the order of the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.numerics.codec import Buffer
from gruppetto.protocol.messages import Answer, Heartbeat
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.connection import Closing, Connection
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.wire import (
    FROM_SYNCER,
    CloseCode,
    Frame,
    HelloFrame,
    checksum,
    decode_answer,
    decode_frame,
    encode_answer,
    encode_frame,
    octets,
)

__all__ = ["Download", "InlineWorker", "MemoryControl", "MemoryLink"]

CHUNK_BYTES = 1 << 16

T = TypeVar("T")


class InlineWorker:
    """A :class:`~gruppetto.runtime.worker.Worker` that does everything at once: a world without threads."""

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        try:
            result = job()
        except Exception as error:  # a Future would hand on the same
            failed(error)
        else:
            done(result)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A published fragment as it comes off the wire."""

    fragment: Fragment
    version: Version
    codec: str
    body: Buffer
    checksum: int
    """CRC-32 of the body."""


class MemoryControl:
    """An open control connection, seen by the learner."""

    def __init__(self, service: SyncerService, connection: Connection) -> None:
        self._service, self._connection = service, connection
        self.is_open = True

    @property
    def closed(self) -> Closing | None:
        """How the syncer closed it, once everything is received; None while it is open."""
        return self._connection.closing

    def send(self, frame: Frame) -> None:
        if not self.is_open:
            raise ConnectionLost("the control connection is closed")
        try:
            self._service.receive(self._connection, encode_frame(frame))
        except ProtocolError as wrong:
            self._service.seen.malformed += 1
            self._connection.close(CloseCode.PROTOCOL, str(wrong))
            self.close()

    def receive(self) -> list[Frame]:
        """Every frame that has come since the last call, in order."""
        frames = [decode_frame(data, FROM_SYNCER) for data in self._connection.take()]
        if self._connection.closing is not None:
            self.close()
        return frames

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._service.lost(self._connection)


class MemoryLink:
    """What a learner can ask of its syncer. A refused request raises :class:`ProtocolError` with the syncer's text."""

    def __init__(self, service: SyncerService) -> None:
        self._service = service

    def connect(self, frame: HelloFrame) -> MemoryControl:
        return MemoryControl(self._service, self._service.greet(encode_frame(frame), "memory"))

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self._service.heartbeat(encode_frame(heartbeat))

    def contribute(self, answer: Answer, codec: str, body: Buffer) -> str:
        """What the syncer says of it, "taken" for one."""
        data = octets(body)
        answer = decode_answer(encode_answer(answer))
        self._service.room_for(answer, codec, len(data))
        if not self._service.wants(answer):
            return self._service.turn_away(answer)
        with self._service.open_contribution(answer, codec, len(data), checksum(data)) as upload:
            for at in range(0, len(data), CHUNK_BYTES):
                upload.write(data[at : at + CHUNK_BYTES])
            return self._service.contribute(answer, upload)

    def seed(self, learner: LearnerId, incarnation: Incarnation, fragment: Fragment, body: Buffer) -> None:
        data = octets(body)
        with self._service.open_seed(learner, incarnation, fragment, len(data), checksum(data)) as upload:
            upload.write(data)
            self._service.seed(learner, incarnation, fragment, upload)

    def fetch(self, fragment: Fragment, version: Version) -> Download:
        """Version ``version`` of a published fragment, or a newer one."""
        value = self._service.borrow(fragment)
        if value is None or value.version < version:
            if value is not None:
                self._service.give_back(value)
            raise ProtocolError(f"fragment {fragment} has no version {version} yet")
        try:
            engine = self._service.engine_for(fragment)
            return Download(
                fragment=fragment,
                version=value.version,
                codec=engine.parameters.downlink.whole.name,
                body=bytes(octets(value.body)),
                checksum=value.checksum,
            )
        finally:
            self._service.give_back(value)
