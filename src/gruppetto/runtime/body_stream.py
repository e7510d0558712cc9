"""One connection of the road of bodies, seen from either end: bytes go where they belong, and are copied once.

asyncio's transports serve, with two short cuts. What comes is received straight into its place (a
:class:`~gruppetto.runtime.sinks.Sink`), where HTTP parsers would copy it three times. What goes out without TLS is sent
from where it lies, past the transport, which would copy all that the kernel does not take at once. With TLS everything
is copied twice more, in and out of the cipher's buffers: that is what is left between us and raw ``ssl`` sockets.

Nothing is read while nobody waits for it: the body stays at the sender.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.runtime.body_wire import LENGTH_BYTES, MAX_HEAD_BYTES, Head, decode
from gruppetto.runtime.pacing import Bucket, in_turn, set_up
from gruppetto.runtime.sinks import Bytes, Discard, Greeting, Nothing, Sink
from gruppetto.runtime.wire import checksum

__all__ = ["CHUNK_BYTES", "BodyStream"]

CHUNK_BYTES = 1 << 18
"""Read and sent at a time: looked at while it is in the cache."""
CHUNKS_A_TURN = 4
"""Moved without looking at anything else, about half a millisecond; a turn of the event loop costs a tenth of that."""


class BodyStream(asyncio.BufferedProtocol):
    """Give it a transport, by making it its protocol. ``on_lost`` is told of the end of the connection.

    Every method that waits raises :class:`ConnectionLost` when the connection ends meanwhile; what limits the waiting
    is the caller's. After an error in the middle of something the connection is of no use and has to be closed.
    """

    def __init__(self, on_lost: Callable[[Exception | None], None] = lambda wrong: None) -> None:
        self._on_lost = on_lost
        self.small = False
        """It was made for small segments (:class:`~gruppetto.runtime.dialling.Segments`)."""
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self.received_bytes = 0
        """Since it was made, by the transport and past it, TLS's own not among them."""
        self._sending = False
        self._sink: Sink | None = None
        self._moved: Callable[[], None] | None = None
        self._filled: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost: ConnectionLost | None = None
        self._paused = False

    # ── called by the transport ──────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # A descriptor of our own, since asyncio keeps its hands on the other.
        own = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        own.setblocking(False)
        set_up(own)
        if transport.get_extra_info("ssl_object") is None:
            self._socket = own
        else:
            own.close()
        self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection broke" if exc is None else str(exc) or type(exc).__name__)
        self._close_own()
        self._on_lost(exc)

    def eof_received(self) -> bool:
        self._end("the connection was closed")
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        # A transport that was stopped may still have something decrypted; it is not lost, only not asked for.
        return (self._sink or _NOTHING).room()[:CHUNK_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        sink, filled = self._sink, self._filled
        self.received_bytes += nbytes
        try:
            (sink or _NOTHING).wrote(nbytes)
            if sink is not None and self._socket is not None:
                self._take_more(sink, self._socket)
        except Exception as wrong:
            self._pause()
            if filled is not None and not filled.done():
                filled.set_exception(wrong)
            else:
                self.abort()
            return
        if self._moved is not None:
            self._moved()
        if sink is not None and not sink.missing_bytes:
            self._pause()
            if filled is not None and not filled.done():
                filled.set_result(None)

    def _take_more(self, sink: Sink, source: socket.socket) -> None:
        """What is here already, past the event loop."""
        with suppress(OSError):  # nothing is; or it is broken, which the transport finds out too
            for _ in range(CHUNKS_A_TURN - 1):
                if not sink.missing_bytes:
                    return
                came = source.recv_into(sink.room()[:CHUNK_BYTES])
                if not came:
                    return
                self.received_bytes += came
                sink.wrote(came)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # ── called by whoever has something to move ──────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None and not self._transport.is_closing()

    async def fill(self, sink: Sink, moved: Callable[[], None] | None = None) -> None:
        """Read until nothing is missing; ``moved`` is called whenever something has come."""
        if not sink.missing_bytes:
            return
        self._check()
        assert self._filled is None, "somebody is reading already"
        self._sink, self._moved = sink, moved
        self._filled = asyncio.get_running_loop().create_future()
        self._resume()
        try:
            await self._filled
        finally:
            self._pause()
            self._sink = self._moved = self._filled = None

    async def head(self, kind: type[Head], moved: Callable[[], None] | None = None) -> Head:
        """The next head. Raises :class:`ProtocolError` for nonsense."""
        length = Bytes(LENGTH_BYTES)
        await self.fill(length, moved)
        num_bytes = int.from_bytes(length.data, "big")
        if num_bytes > MAX_HEAD_BYTES:
            raise ProtocolError(f"a head of {num_bytes} bytes; at most {MAX_HEAD_BYTES} are allowed")
        data = Bytes(num_bytes)
        await self.fill(data, moved)
        return decode(data.data, kind)

    async def greeting(self) -> str:
        """The head of the HTTP reply that opens the road."""
        greeting = Greeting()
        await self.fill(greeting)
        return greeting.text

    async def send_body(
        self, body: memoryview, sent: Callable[[int], None], pace: Bucket | None = None, *, crc: int | None = None
    ) -> int:
        """Send all of it, in chunks, no faster than ``pace`` allows; ``sent`` is told of each. With ``crc``, that of
        what came before, their checksum is taken on the way, and returned."""
        whole, count = crc or 0, 0
        async for chunk in in_turn(body, pace, most_bytes=CHUNK_BYTES):
            if crc is not None:
                whole = checksum(chunk, whole)
            await self.send(chunk)
            sent(chunk.nbytes)
            count += 1
            if count % CHUNKS_A_TURN == 0:
                await asyncio.sleep(0)  # a link that takes everything at once is not all that there is to do
        return whole

    async def send(self, data: bytes | memoryview) -> None:
        """Hand over bytes; with TLS, until few enough wait. They are not looked at again when this returns."""
        self._check()
        assert self._transport is not None
        if self._socket is None:
            self._transport.write(data)
            await self._writable.wait()
            self._check()
            return
        self._sending = True
        try:
            rest = memoryview(data)
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    await _takes_more(self._socket)
        except OSError as wrong:
            raise ConnectionLost(wrong.strerror or "the connection broke") from wrong
        finally:
            self._sending = False
            if self._lost is not None:
                self._close_own()

    def watch(self) -> None:
        """Nobody uses it now: find out when it ends."""
        self._resume()

    async def drain(self) -> None:
        """Read, and look at nothing, until the other end closes. Raises :class:`ConnectionLost` then."""
        await self.fill(Discard(None))

    async def skip(self, num_bytes: int, moved: Callable[[], None] | None = None) -> None:
        """Read so many bytes, and look at none."""
        await self.fill(Discard(num_bytes), moved)

    def let_go(self) -> None:
        """The transport has another protocol again."""
        self._transport = None
        self._close_own()

    def close(self) -> None:
        """What was handed over still goes out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Nothing more goes out."""
        if self._transport is not None:
            self._transport.abort()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _close_own(self) -> None:
        if self._socket is None:
            return
        if self._sending:  # the loop would watch a closed descriptor for ever: whoever sends hears of it, and closes
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        else:
            self._socket.close()

    def _check(self) -> None:
        if self._lost is not None:
            raise ConnectionLost(str(self._lost))

    def _end(self, why: str) -> None:
        self._lost = self._lost or ConnectionLost(why)
        self._writable.set()
        if self._filled is not None and not self._filled.done():
            self._filled.set_exception(self._lost)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            with suppress(RuntimeError):  # it is closing
                self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            with suppress(RuntimeError):
                self._transport.resume_reading()


async def _takes_more(target: socket.socket) -> None:
    """Wait until the kernel has room for something, or the connection has ended."""
    loop = asyncio.get_running_loop()
    ready, number = loop.create_future(), target.fileno()

    def is_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(number, is_ready)
    try:
        await ready
    finally:
        loop.remove_writer(number)


_NOTHING = Nothing()
