"""A learner's end of the road of bodies (:mod:`~gruppetto.runtime.body_wire`): a few connections, used in turn."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.body_stream import BodyStream, Bytes, Sink
from gruppetto.runtime.body_wire import (
    BODIES_PATH,
    CONTINUE,
    GREETING_END,
    TRAILER_BYTES,
    UPGRADE,
    Reply,
    Request,
    encode,
)
from gruppetto.runtime.dialling import Segments, connected
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.wire import CHECKSUM_HEADER, OFFSET_HEADER, checksum

__all__ = ["Differs", "Road", "RoadReply"]

PASSING = frozenset({401, 403, 408, 429})
"""Statuses that do not say that there is no such road here."""
MAX_IDLE = 8
Moved = Callable[[], None]


class Differs(ConnectionLost):
    """What the syncer has of a body is not its beginning."""


class RoadReply:
    """What came, as far as it is known before its body is read."""

    def __init__(self, stream: BodyStream, head: Reply) -> None:
        self._stream, self._head = stream, head
        self.status, self.headers, self.length = head.status, head.headers, head.length

    async def pour(self, sink: Sink, moved: Moved) -> None:
        """The body into its place, which is exactly as long."""
        await self._stream.fill(sink, moved)

    async def read(self, limit: int) -> bytes:
        """A short body. Raises :class:`ProtocolError` for one that is not."""
        if self.length > limit:
            raise ProtocolError(f"a reply of {self.length} bytes")
        text = Bytes(self.length)
        await self._stream.fill(text)
        return bytes(text.data)


class Road:
    """``headers``: what opens it, the token among them. ``dial_s``: how long making a connection may take."""

    def __init__(
        self, headers: dict[str, str], tls: ssl.SSLContext | None, segments: Segments, *, dial_s: float
    ) -> None:
        self._headers, self._tls, self._segments, self._dial_s = headers, tls, segments, dial_s
        self._idle: dict[SyncerAddress, list[BodyStream]] = {}
        self._none_at: set[SyncerAddress] = set()

    def close(self) -> None:
        """Drop all connections that wait for use."""
        for streams in self._idle.values():
            for stream in streams:
                stream.abort()
        self._idle.clear()

    async def open(self, address: SyncerAddress) -> BodyStream | None:
        """A connection of our own for a while; None where there is no such road, and everything goes by HTTP. Raises
        :class:`OSError`, :class:`TimeoutError` and :class:`ConnectionLost`."""
        if address in self._none_at:
            return None
        idle = self._idle.get(address, [])
        while idle:
            stream = idle.pop()
            if stream.is_open:
                return stream
        async with asyncio.timeout(self._dial_s):
            stream = await self._dial(address)
            try:
                await stream.send(self._greeting(address))
                words = (await stream.greeting()).split(maxsplit=2)
                status = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
            except BaseException:
                stream.abort()
                raise
        if status == 101:
            return stream
        stream.abort()
        if 400 <= status < 500 and status not in PASSING:
            self._none_at.add(address)
        return None

    def give_back(self, address: SyncerAddress, stream: BodyStream) -> None:
        """It is in order, and may serve again."""
        idle = self._idle.setdefault(address, [])
        if len(idle) < MAX_IDLE and stream.is_open:
            stream.watch()
            idle.append(stream)
        else:
            stream.abort()

    @asynccontextmanager
    async def ask(
        self,
        stream: BodyStream,
        address: SyncerAddress,
        request: Request,
        body: memoryview | None,
        moved: Moved,
        sent: Callable[[int], None],
        pace: Bucket | None = None,
    ) -> AsyncIterator[RoadReply]:
        """One exchange; a body has its checksum behind it. ``moved`` is called whenever something has come, ``sent`` of
        every part of the body that has gone. The reply's body has to be read to its end, or the connection is of no
        further use."""
        sending: asyncio.Task[None] | None = None
        try:
            await stream.send(encode(request))
            goes_on, crc = not request.resumes, 0
            if not goes_on:
                head = await stream.head(Reply, moved)
                goes_on = head.status == CONTINUE
                body, crc = _rest(head, body) if goes_on and body is not None else (None, 0)
            if goes_on:
                if body is not None:
                    sending = asyncio.create_task(_send(stream, body, crc, sent, pace))
                head = await stream.head(Reply, moved)  # it may come before all is sent: nobody wants it any more
                if sending is not None and not head.closes:
                    await sending
            yield RoadReply(stream, head)
        except BaseException:
            stream.abort()
            raise
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        if head.closes:
            stream.abort()
        else:
            self.give_back(address, stream)

    async def _dial(self, address: SyncerAddress) -> BodyStream:
        tls = (self._tls or ssl.create_default_context()) if address.secure else None
        small = self._segments.small
        made = await connected(address.host, address.port, self._segments)
        try:
            _, stream = await asyncio.get_running_loop().create_connection(
                BodyStream, sock=made, ssl=tls, server_hostname=None if tls is None else address.host
            )
        except BaseException:
            made.close()
            raise
        stream.small = small
        return stream

    def _greeting(self, address: SyncerAddress) -> bytes:
        host = address.url().partition("://")[2]
        headers = {"Host": host, "Connection": "Upgrade", "Upgrade": UPGRADE, **self._headers}
        lines = [f"GET {BODIES_PATH} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
        return "\r\n".join(lines).encode("latin-1", "replace") + GREETING_END


async def _send(
    stream: BodyStream, body: memoryview, crc: int, sent: Callable[[int], None], pace: Bucket | None
) -> None:
    """A body, and its checksum behind it; ``crc`` is that of what the syncer has already."""
    crc = await stream.send_body(body, sent, pace, crc=crc)
    await stream.send(crc.to_bytes(TRAILER_BYTES, "big"))


def _rest(head: Reply, body: memoryview) -> tuple[memoryview, int]:
    """What the syncer lacks, and the checksum of what it has. Raises :class:`Differs` if that is not ours."""
    try:
        offset, crc = int(head.headers[OFFSET_HEADER]), int(head.headers[CHECKSUM_HEADER], 16)
    except (KeyError, ValueError) as wrong:
        raise ProtocolError("the syncer does not say where to go on") from wrong
    if not 0 <= offset <= body.nbytes or checksum(body[:offset]) != crc:
        raise Differs("the syncer has something else of that body")
    return body[offset:], crc
