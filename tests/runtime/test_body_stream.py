"""What a connection of the road of bodies has received is counted to the byte, by whichever way it came."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from tests import steady

from gruppetto.runtime.body_stream import CHUNK_BYTES, BodyStream
from gruppetto.runtime.body_wire import Request, encode
from gruppetto.runtime.sinks import Bytes

BODY_BYTES = 16 * CHUNK_BYTES
"""More than the kernel holds, and than is taken in one turn of the loop."""
NEXT = encode(Request(method="GET", path="/v1/fragment/0", headers={}))


def _run(test: Callable[[BodyStream, Awaitable[None]], Awaitable[None]]) -> None:
    """``test`` has a stream to which a body is sent, and a request behind it."""

    async def inside() -> None:
        loop = asyncio.get_running_loop()
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as far,
        ):
            near, _ = listener.accept()
            far.setblocking(False)
            transport, stream = await loop.create_connection(BodyStream, sock=near)
            sending = loop.create_task(loop.sock_sendall(far, bytes(BODY_BYTES) + NEXT))
            try:
                await test(stream, sending)
            finally:
                sending.cancel()
                transport.abort()

    steady.run(inside())


def test_all_that_came_is_counted() -> None:
    async def test(stream: BodyStream, sending: Awaitable[None]) -> None:
        await stream.fill(Bytes(BODY_BYTES))
        assert stream.received_bytes == BODY_BYTES
        assert (await stream.head(Request)).path == "/v1/fragment/0"
        assert stream.received_bytes == BODY_BYTES + len(NEXT)
        await sending

    _run(test)


def test_behind_a_body_that_is_given_up_half_way_the_next_request_is_found() -> None:
    async def test(stream: BodyStream, sending: Awaitable[None]) -> None:
        sink = Bytes(BODY_BYTES)

        def moved() -> None:
            if sink.missing_bytes < BODY_BYTES // 2:
                reading.cancel()

        reading = asyncio.ensure_future(stream.fill(sink, moved))
        await asyncio.wait([reading])
        assert reading.cancelled() and sink.missing_bytes == BODY_BYTES - stream.received_bytes > 0
        await stream.skip(BODY_BYTES - stream.received_bytes)
        assert (await stream.head(Request)).path == "/v1/fragment/0"
        await sending

    _run(test)
