"""The syncer's endpoints, thin around :class:`~gruppetto.runtime.service.SyncerService` (the list is in
:mod:`gruppetto.runtime.wire`).

Nothing here waits for ever: whoever moves no byte for ``stall_s`` is dropped, whatever the size of the transfer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import msgspec
from aiohttp import ClientError, WSMsgType, web

from gruppetto.errors import ProtocolError
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.intake import Intake, Upload
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.wire import (
    ANSWER_HEADER,
    CHECKSUM_HEADER,
    CODEC_HEADER,
    INCARNATION_HEADER,
    LAYOUT_HEADER,
    LEARNER_HEADER,
    MAX_HELLO_BYTES,
    ROUND_HEADER,
    VERSION_HEADER,
    CloseCode,
    decode_answer,
    octets,
)

__all__ = ["HttpServer"]

_log = logging.getLogger("gruppetto.syncer")

CHUNK_BYTES = 1 << 20
"""Bodies leave in chunks of this size: a stall is noticed between two of them."""
MAX_HEARTBEAT_BYTES = 4096
MAX_CONNECTIONS = 8192
"""Control connections: every learner with an old process and a new one."""
MAX_WAITING_UPLOADS = 1024
"""Uploads that may wait for a buffer; the next one is told to come again."""
MAX_MODEL_STREAMS = 4
"""Each may hold on to one old value of the whole model."""
MAX_COMPLAINTS = 1000
"""Kinds of nonsense, per peer, that are logged once."""
PING_S = 30.0
"""A control connection whose peer has vanished without a word is found out by this."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """An aiohttp application. ``token``: what every request must show; None lets everybody in."""

    def __init__(self, service: SyncerService, *, token: str | None, stall_s: float) -> None:
        self._service, self._stall_s = service, stall_s
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._room = asyncio.Event()
        self._waiting_uploads = self._model_streams = self._connections = 0
        self._complaints: set[tuple[str, str]] = set()
        self.app = web.Application(middlewares=[self._guard])
        self.app.add_routes(
            [
                web.get("/healthz", _healthz),
                web.get("/v1/control", self._control),
                web.post("/v1/heartbeat", self._heartbeat),
                web.put(r"/v1/contribution/{round:\d{1,16}}/{fragment:\d{1,9}}", self._contribution),
                web.put(r"/v1/seed/{fragment:\d{1,9}}", self._seed),
                web.get(r"/v1/fragment/{fragment:\d{1,9}}", self._fragment),
                web.get("/v1/status", self._status),
                web.get("/v1/model", self._model),
            ]
        )

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who may ask, and what becomes of nonsense."""
        if self._expected is not None and request.path != "/healthz":
            shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(shown, self._expected):
                self._complain(request, "token", "no token, or a wrong one")
                return web.Response(status=401, text="a valid token is needed: Authorization: Bearer TOKEN\n")
        try:
            return await handler(request)
        except ProtocolError as wrong:
            self._service.seen.malformed += 1
            self._complain(request, request.match_info.handler.__name__, str(wrong))
            return web.Response(status=400, text=f"{wrong}\n")

    def _complain(self, request: web.Request, kind: str, text: str) -> None:
        peer = request.remote or "?"
        if (peer, kind) not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints.add((peer, kind))
            _log.warning("%s %s: %s (further ones are not logged)", peer, request.path[:100], text[:500])

    # ── control ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _control(self, request: web.Request) -> web.StreamResponse:
        if self._connections >= MAX_CONNECTIONS:
            return web.Response(status=503, text=f"{MAX_CONNECTIONS} learners are connected already\n")
        socket = web.WebSocketResponse(max_msg_size=MAX_HELLO_BYTES, compress=False, heartbeat=PING_S)
        await socket.prepare(request)
        self._connections += 1
        try:
            await self._converse(request, socket)
        except ProtocolError as wrong:
            self._service.seen.malformed += 1
            self._complain(request, "control", str(wrong))
            with suppress(OSError, TimeoutError, ClientError):
                await self._close(socket, CloseCode.PROTOCOL, str(wrong))
        finally:
            self._connections -= 1
        return socket

    async def _converse(self, request: web.Request, socket: web.WebSocketResponse) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                first = await socket.receive()
        except TimeoutError:
            raise ProtocolError("no HelloFrame came") from None
        if first.type is not WSMsgType.BINARY:
            if first.type is WSMsgType.TEXT:
                raise ProtocolError("a control connection begins with a binary HelloFrame")
            return
        connection = self._service.greet(first.data, request.remote or "?")
        writer = asyncio.create_task(self._write(request, socket, connection))
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    raise ProtocolError("text came where only frames may come")
                if message.type is WSMsgType.BINARY:
                    self._service.receive(connection, message.data)
        finally:
            self._service.lost(connection)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, request: web.Request, socket: web.WebSocketResponse, connection: Connection) -> None:
        """Send what waits, until the connection is closed from either side."""
        changed = asyncio.Event()
        changed.set()
        connection.on_change = changed.set
        try:
            while True:
                await changed.wait()
                changed.clear()
                for frame in connection.take():
                    async with asyncio.timeout(self._stall_s):
                        await socket.send_bytes(frame)
                    self._service.seen.traffic.down += len(frame)
                if connection.closing is not None:
                    await self._close(socket, connection.closing.code, connection.closing.text)
                    return
        except (OSError, TimeoutError, ClientError):
            # The reader sees the end of the connection and says so.
            if request.transport is not None:
                request.transport.abort()

    async def _close(self, socket: web.WebSocketResponse, code: int, text: str) -> None:
        # A close frame has room for 123 bytes of reason.
        reason = text.encode()[:120].decode("utf-8", "ignore").encode()
        async with asyncio.timeout(self._stall_s):
            await socket.close(code=code, message=reason)

    async def _heartbeat(self, request: web.Request) -> web.StreamResponse:
        length = _content_length(request)
        if length > MAX_HEARTBEAT_BYTES:
            raise ProtocolError(f"a heartbeat of {length} bytes")
        try:
            async with asyncio.timeout(self._stall_s):
                data = await request.content.readexactly(length)
        except (asyncio.IncompleteReadError, OSError, TimeoutError, ClientError):
            raise ProtocolError("the heartbeat was cut short") from None
        self._service.heartbeat(data)
        return web.Response(status=204)

    # ── bodies that come in ──────────────────────────────────────────────────────────────────────────────────────

    async def _contribution(self, request: web.Request) -> web.StreamResponse:
        answer = decode_answer(request.headers.get(ANSWER_HEADER, ""))
        if (answer.round, answer.fragment) != (int(request.match_info["round"]), _fragment_of(request)):
            raise ProtocolError(f"{ANSWER_HEADER} is about round {answer.round}, fragment {answer.fragment}")
        length, crc, codec = _content_length(request), _checksum(request), request.headers.get(CODEC_HEADER, "")
        intake = self._service.engine_for(answer.fragment).contributions
        async with self._room_in(intake):
            with self._service.open_contribution(answer, codec, length, crc) as upload:
                await self._receive(request, upload)
                status = self._service.contribute(answer, upload)
        return web.Response(body=msgspec.msgpack.encode({"status": status}), content_type="application/msgpack")

    async def _seed(self, request: web.Request) -> web.StreamResponse:
        fragment, length, crc = _fragment_of(request), _content_length(request), _checksum(request)
        learner = LearnerId(request.headers.get(LEARNER_HEADER, ""))
        incarnation = Incarnation(_number(request.headers.get(INCARNATION_HEADER, ""), INCARNATION_HEADER))
        async with self._room_in(self._service.engine_for(fragment).seeds):
            with self._service.open_seed(learner, incarnation, fragment, length, crc) as upload:
                await self._receive(request, upload)
                self._service.seed(learner, incarnation, fragment, upload)
        return web.Response(body=msgspec.msgpack.encode({"status": "taken"}), content_type="application/msgpack")

    @asynccontextmanager
    async def _room_in(self, intake: Intake) -> AsyncIterator[None]:
        """Wait until a buffer is free. Meanwhile the body stays at the sender: nobody reads its socket."""
        if self._waiting_uploads >= MAX_WAITING_UPLOADS:
            raise web.HTTPServiceUnavailable(text="too many uploads are waiting; come again\n")
        intake.on_room = self._room.set
        self._waiting_uploads += 1
        try:
            while not intake.has_room():
                self._room.clear()
                await self._room.wait()
        finally:
            self._waiting_uploads -= 1
        yield

    async def _receive(self, request: web.Request, upload: Upload) -> None:
        """Read a body into its buffer."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._stall_s) as deadline:
                async for chunk in request.content.iter_any():
                    upload.write(chunk)
                    deadline.reschedule(loop.time() + self._stall_s)
        except TimeoutError:
            raise ProtocolError(f"no byte came for {self._stall_s:g} s") from None
        except (OSError, ClientError, web.RequestPayloadError):
            raise ProtocolError(f"the body ends {upload.missing_bytes} bytes too early") from None

    # ── bodies that go out ───────────────────────────────────────────────────────────────────────────────────────

    async def _fragment(self, request: web.Request) -> web.StreamResponse:
        fragment = _fragment_of(request)
        wanted = _number(request.query.get("version", "0"), "version")
        try:
            engine, value = self._service.engine_for(fragment), self._service.borrow(fragment)
        except ProtocolError as unknown:
            return web.Response(status=404, text=f"{unknown}\n")
        if value is None:
            return web.Response(status=404, text="there are no weights yet\n")
        try:
            if value.version < wanted:
                text = f"the newest version of fragment {fragment} is {value.version}, not yet {wanted}\n"
                return web.Response(status=404, text=text)
            headers = {
                VERSION_HEADER: str(value.version),
                LAYOUT_HEADER: engine.layout.layout_hash,
                CODEC_HEADER: engine.parameters.downlink.name,
                CHECKSUM_HEADER: f"{value.checksum:08x}",
            }
            return await self._stream(request, headers, value.body.nbytes, [octets(value.body)])
        finally:
            self._service.give_back(value)

    async def _model(self, request: web.Request) -> web.StreamResponse:
        if self._model_streams >= MAX_MODEL_STREAMS:
            return web.Response(status=503, text="too many are reading the model; come again\n")
        model = self._service.borrow_model()
        if model is None:
            return web.Response(status=404, text="there are no weights yet\n")
        self._model_streams += 1
        try:
            return await self._stream(request, {ROUND_HEADER: str(model.round)}, model.length, model)
        finally:
            self._model_streams -= 1
            self._service.give_back(*model.values)

    async def _stream(
        self, request: web.Request, headers: dict[str, str], length: int, parts: Iterable[bytes | memoryview]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/octet-stream"
        response.content_length = length
        try:
            await response.prepare(request)
            for part in parts:
                for at in range(0, len(part), CHUNK_BYTES):
                    # A copy: what the socket still holds when the reader has gone must not change under it.
                    chunk = bytes(part[at : at + CHUNK_BYTES])
                    async with asyncio.timeout(self._stall_s):
                        await response.write(chunk)
                    self._service.seen.traffic.down += len(chunk)
            await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except OSError:
            pass  # the reader has gone
        return response

    async def _status(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.encode(self._service.status())
        return web.Response(body=body, content_type="application/json")


async def _healthz(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


def _fragment_of(request: web.Request) -> Fragment:
    return Fragment(int(request.match_info["fragment"]))


def _content_length(request: web.Request) -> int:
    if request.content_length is None:
        raise web.HTTPLengthRequired(text="Content-Length is needed\n")
    return request.content_length


def _checksum(request: web.Request) -> int:
    text = request.headers.get(CHECKSUM_HEADER, "")
    try:
        if len(text) != 8:
            raise ValueError
        return int(text, 16)
    except ValueError:
        raise ProtocolError(f"{CHECKSUM_HEADER} must be the CRC-32 of the body, eight hexadecimal digits") from None


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ProtocolError(f"{what} is {text[:40]!r}, not a number")
    return int(text)
