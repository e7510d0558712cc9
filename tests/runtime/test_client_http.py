"""The learner's HTTP side against servers that lie, stall and refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from aiohttp import web
from tests import steady

from gruppetto.errors import AddressError, ConnectionLost, ProtocolError
from gruppetto.numerics.codec import CASTS, CODECS
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.headers import ANSWER_HEADER, CHECKSUM_HEADER, CODEC_HEADER, LAYOUT_HEADER, VERSION_HEADER
from gruppetto.runtime.http_client import CHUNK_BYTES, HttpSyncer
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.wire import FROM_SYNCER, checksum, decode_answer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
VALUES = np.float32([1.5, -2.0, 3.25])


@asynccontextmanager
async def talking_to(path: str, handler: Handler, stall_s: float = 20.0) -> AsyncIterator[HttpSyncer]:
    """A client of a server that answers everything under ``path`` with ``handler``."""
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = SyncerAddress.parse(f"127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with HttpSyncer(address, token="sesame", tls=None, stall_s=stall_s) as client:
            yield client
    finally:
        await runner.cleanup()


def a_fragment(codec: str = "fp32", **headers: str) -> web.Response:
    body = CODECS[codec].encode(VALUES).tobytes()
    plain = {
        VERSION_HEADER: "7",
        LAYOUT_HEADER: "layout",
        CODEC_HEADER: codec,
        CHECKSUM_HEADER: f"{checksum(body):08x}",
    }
    return web.Response(body=body, headers=plain | {key.replace("_", "-"): text for key, text in headers.items()})


async def fetch(reply: Callable[[], web.StreamResponse]) -> tuple[Version, list[float]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer sesame"
        return reply()

    async with talking_to("/v1/fragment/{p}", handler) as client:
        into = LeasePool().lend(3)
        version = await client.fetch(Fragment(0), Version(5), "layout", into)
        return version, into.values.tolist()


@pytest.mark.parametrize("codec", sorted(CASTS))
def test_a_fragment_in_any_encoding(codec: str) -> None:
    assert steady.run(fetch(lambda: a_fragment(codec))) == (7, VALUES.tolist())


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (lambda: a_fragment(Gruppetto_Checksum="00000000"), ConnectionLost, "damaged"),
        (lambda: a_fragment(Gruppetto_Layout="another"), ProtocolError, "another layout"),
        (lambda: a_fragment(Gruppetto_Codec="zip"), ProtocolError, "no known encoding"),
        (lambda: a_fragment(Gruppetto_Codec="bf16"), ProtocolError, "12 bytes"),
        (lambda: a_fragment(Gruppetto_Version="-1"), ProtocolError, "not a number"),
        (lambda: web.Response(status=404, text="there are no weights yet\nmore"), ProtocolError, "no weights yet$"),
        (lambda: web.Response(status=503, text="come again"), ConnectionLost, "come again"),
    ],
)
def test_a_fragment_that_is_not_what_was_asked_for(
    reply: Callable[[], web.StreamResponse], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        steady.run(fetch(reply))


def test_a_transfer_that_stands_still_is_given_up_and_a_slow_one_is_not() -> None:
    pieces = 12

    async def run(pause_s: float) -> Version:
        async def handler(request: web.Request) -> web.StreamResponse:
            whole = a_fragment()
            reply = web.StreamResponse(headers={**whole.headers, "Content-Length": "12"})
            await reply.prepare(request)
            for byte in bytes(whole.body or b""):  # type: ignore[arg-type]
                await reply.write(bytes([byte]))
                await asyncio.sleep(pause_s)
            return reply

        async with talking_to("/v1/fragment/{p}", handler, stall_s=8 * 0.1) as client:
            return await client.fetch(Fragment(0), Version(0), "layout", LeasePool().lend(3))

    assert steady.run(run(0.1)) == 7, f"{pieces} pauses together are longer than the limit; each is shorter"
    with pytest.raises(ConnectionLost, match="nothing moved"):
        steady.run(run(3.0))


def an_answer() -> Answer:
    return Answer(
        learner=LearnerId("a"),
        incarnation=Incarnation(1),
        epoch=Epoch(1),
        round=Round(3),
        fragment=Fragment(2),
        base_version=Version(1),
        steps=1,
        tokens=10,
        total_tokens=10,
        cursor=1,
        layout_hash="layout",
    )


def test_a_contribution_arrives_whole_in_several_chunks() -> None:
    body = np.random.default_rng(0).integers(0, 255, 2 * CHUNK_BYTES + 77, np.uint8)
    seen: list[object] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        data = await request.read()
        assert request.content_length == len(data) == body.nbytes
        assert request.headers[CHECKSUM_HEADER] == f"{checksum(data):08x}"
        seen.append((request.path, data == body.tobytes(), decode_answer(request.headers[ANSWER_HEADER])))
        return web.Response(body=b"")

    async def run() -> int:
        async with talking_to("/v1/contribution/{t}/{p}", handler) as client:
            await client.contribute(an_answer(), "bf16", body.data)
            return client.bytes_up

    assert steady.run(run()) == body.nbytes
    assert seen == [("/v1/contribution/3/2", True, an_answer())]


async def dial(handler: Handler) -> None:
    async with talking_to("/v1/control", handler) as client, client.control() as socket:
        await socket.receive(FROM_SYNCER)


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (401, AddressError, "refuses the token"),
        (404, AddressError, "no syncer answers there"),
        (503, ConnectionLost, "cannot be reached"),
        (429, ConnectionLost, "cannot be reached"),
    ],
)
def test_what_a_person_has_to_mend_and_what_passes(status: int, error: type[Exception], says: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    with pytest.raises(error, match=says) as caught:
        steady.run(dial(handler))
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (1001, ConnectionLost, "the syncer stops"),
        (1002, ProtocolError, "does not accept"),
        (4001, ConnectionLost, "stops"),
    ],
)
def test_how_a_control_connection_ends(code: int, error: type[Exception], says: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close(code=code, message=b"the syncer stops")
        return socket

    with pytest.raises(error, match=says):
        steady.run(dial(handler))


@pytest.mark.parametrize(("send", "says"), [("text", "sent text"), (b"\xff", "not a frame")])
def test_nonsense_on_the_control_connection(send: str | bytes, says: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await (socket.send_str(send) if isinstance(send, str) else socket.send_bytes(send))
        return socket

    with pytest.raises(ProtocolError, match=says):
        steady.run(dial(handler))


def test_a_ping_that_cannot_be_answered_any_more_is_a_lost_connection() -> None:
    """The library answers pings by itself, and raises what it raises if the way back is closed by then."""

    async def pings(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.ping()
        await asyncio.sleep(5)
        return socket

    async def story() -> None:
        app = web.Application()
        app.router.add_get("/v1/control", pings)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = SyncerAddress.parse(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with HttpSyncer(address, token=None, tls=None, stall_s=5.0) as http:
            with pytest.raises(ConnectionLost, match="control connection broke"):
                async with http.control() as control:
                    await asyncio.sleep(0.2)  # the ping is here, unread
                    connection = control._socket._response.connection  # type: ignore[union-attr]
                    assert connection is not None and connection.transport is not None
                    connection.transport.close()
                    await control.receive(frozenset())
        await runner.cleanup()

    steady.run(story())
