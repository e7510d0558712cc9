"""The syncer's end of the road of bodies (:mod:`~gruppetto.runtime.body_wire`): takes a connection over from HTTP and
answers one request after another at the :class:`~gruppetto.runtime.desk.Desk`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.body_stream import BodyStream
from gruppetto.runtime.body_wire import CONTINUE, UPGRADE, Reply, Request, encode
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.desk import Desk, Inbound, NotHere, Outbound
from gruppetto.runtime.intake import Upload
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.patience import patience
from gruppetto.runtime.service import NotAsked, SyncerService
from gruppetto.runtime.wire import CHECKSUM_HEADER, NOT_YOUR_TURN, OFFSET_HEADER

__all__ = ["BodyServer"]

IDLE_S = 30.0
"""A connection on which nothing is asked for so long is closed; the client dials anew when it needs one."""
MAX_CONNECTIONS = 16_384
CONTRIBUTION = re.compile(r"/v1/contribution/(\d{1,16})/(\d{1,9})")
SEED = re.compile(r"/v1/seed/(\d{1,9})")
FRAGMENT = re.compile(r"/v1/fragment/(\d{1,9})")


class BodyServer:
    """All connections of the road of one syncer."""

    def __init__(self, desk: Desk, service: SyncerService, complaints: Complaints, *, stall_s: float) -> None:
        self._desk, self._service, self._complaints, self._stall_s = desk, service, complaints, stall_s
        self._idle: set[BodyStream] = set()
        self._open = 0
        self._stopping = False
        self.pace: Bucket | None = None
        """What goes out on all connections together is held to this."""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Switch a connection over, and answer on it until it ends."""
        if request.headers.get("Upgrade", "").lower() != UPGRADE:
            return web.Response(status=426, headers={"Upgrade": UPGRADE}, text=f"Upgrade: {UPGRADE} is needed\n")
        if self._open >= MAX_CONNECTIONS or self._stopping:
            return web.Response(status=503, text="come again\n")
        response = web.StreamResponse(status=101, headers={"Upgrade": UPGRADE, "Connection": "Upgrade"})
        await response.prepare(request)
        response.force_close()
        transport, protocol = request.transport, request.protocol
        if transport is None:
            return response
        stream = BodyStream(protocol.connection_lost)
        transport.set_protocol(stream)
        stream.connection_made(transport)
        self._open += 1
        try:
            await self._converse(stream, request.remote or "?")
        finally:
            self._open -= 1
            if stream.is_open:
                transport.set_protocol(protocol)
                stream.let_go()
            transport.close()
        return response

    def hang_up(self) -> None:
        self._stopping = True
        for stream in self._idle:
            stream.abort()

    async def _converse(self, stream: BodyStream, peer: str) -> None:
        while not self._stopping:
            self._idle.add(stream)
            try:
                async with asyncio.timeout(IDLE_S):
                    request = await stream.head(Request)
            except (ConnectionLost, TimeoutError):
                return
            except ProtocolError as wrong:
                self._service.seen.malformed += 1
                self._complaints.note((peer, "bodies"), f"{peer}: {wrong}")
                return
            finally:
                self._idle.discard(stream)
            exchange = _Exchange(self._desk, self._service, stream, request, self._stall_s, self.pace)
            try:
                if not await exchange.answer(lambda why, path: self._complain(peer, path, why)):
                    return
            except ConnectionLost:
                return
            except TimeoutError:
                stream.abort()
                return

    def _complain(self, peer: str, path: str, why: ProtocolError) -> None:
        if not isinstance(why, NotAsked):
            self._service.seen.malformed += 1
        self._complaints.note((peer, path.rpartition("/")[0][:40]), f"{peer} {path[:100]}: {str(why)[:500]}")


class _Exchange:
    """One request and its reply."""

    def __init__(
        self,
        desk: Desk,
        service: SyncerService,
        stream: BodyStream,
        request: Request,
        stall_s: float,
        pace: Bucket | None,
    ) -> None:
        self._desk, self._service, self._stream, self._request = desk, service, stream, request
        self._stall_s, self._pace = stall_s, pace
        self._unread = request.length > 0 and not request.resumes
        """A body is on its way that nobody has read to its end."""

    async def answer(self, complain: Callable[[ProtocolError, str], None]) -> bool:
        """Carry it out; whether another one may follow on this connection."""
        path = self._request.path
        try:
            if self._request.method == "GET":
                await self._hand_out()
                return not self._unread
            said = await self._take_in()
        except NotHere as nothing:
            return await self._say(nothing.status, str(nothing).encode())
        except NotAsked as old:
            complain(old, path)
            return await self._say(NOT_YOUR_TURN, str(old).encode())
        except ProtocolError as wrong:
            complain(wrong, path)
            return await self._say(400, str(wrong).encode())
        return await self._say(200, said)

    async def _say(self, status: int, text: bytes) -> bool:
        reply = Reply(status=status, length=len(text), closes=self._unread)
        async with asyncio.timeout(self._stall_s):
            await self._stream.send(encode(reply) + text)
            if self._unread:
                await self._stream.drain()  # who sends has to hear of it before the connection ends
        return not self._unread

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_in(self) -> bytes:
        request = self._request
        body = Inbound(headers=request.headers, length=request.length, pour=self._pour, resumes=request.resumes)
        if found := CONTRIBUTION.fullmatch(request.path):
            return await self._desk.contribution(int(found[1]), Fragment(int(found[2])), body)
        if found := SEED.fullmatch(request.path):
            return await self._desk.seed(Fragment(int(found[1])), body)
        raise NotHere(404, "nothing is taken in there")

    async def _pour(self, upload: Upload | PieceUpload, moved: Callable[[], None]) -> None:
        if self._request.resumes:
            headers = {OFFSET_HEADER: str(upload.arrived), CHECKSUM_HEADER: f"{upload.crc:08x}"}
            await self._stream.send(encode(Reply(status=CONTINUE, headers=headers)))
        self._unread = True
        await self._stream.fill(upload, moved)
        self._unread = False

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hand_out(self) -> None:
        asked = urlsplit(self._request.path)
        found = FRAGMENT.fullmatch(asked.path)
        if found is None:
            raise NotHere(404, "nothing is handed out there")
        wanted = parse_qs(asked.query).get("version", ["0"])[-1]
        with self._desk.fragment(Fragment(int(found[1])), wanted, self._request.headers) as body:
            await self._pour_out(body)

    async def _pour_out(self, body: Outbound) -> None:
        head = encode(Reply(status=200, headers=body.headers, length=body.length))
        async with patience(self._stall_s) as time:
            await self._stream.send(head)

            def sent(num_bytes: int) -> None:
                self._service.seen.traffic.down += num_bytes
                time.moved()

            for part in body.parts:
                await self._stream.send_body(part, sent, self._pace)
