"""The syncer's end of the road of bodies (:mod:`~gruppetto.runtime.body_wire`): takes a connection over from HTTP and
answers one request after another at the :class:`~gruppetto.runtime.desk.Desk`.

Who asks is known from the request that opened the connection, and stays the same. What he asks for is looked at each
time, as with plain HTTP; and since that first request lasts as long as the connection, whoever counts no more loses it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.units import Fragment, LearnerId
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.body_stream import BodyStream
from gruppetto.runtime.body_wire import (
    CONTINUE,
    COPIED,
    MEMORY_HEADER,
    TRAILER_BYTES,
    UNSEEN,
    UPGRADE,
    Reply,
    Request,
    encode,
)
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.desk import Desk, Inbound, NotHere, Outbound
from gruppetto.runtime.headers import CHECKSUM_HEADER, NOT_YOUR_TURN, OFFSET_HEADER
from gruppetto.runtime.intake import Upload
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.patience import patience
from gruppetto.runtime.security.identity import Deed, Identity
from gruppetto.runtime.security.porter import Porter, Refusal, Shown
from gruppetto.runtime.service import NotAsked, NotYours, SyncerService
from gruppetto.runtime.shared_memory import NotSeen, SharedMemory, copy_from
from gruppetto.runtime.sinks import Bytes

__all__ = ["BodyServer"]

READ_ON_BYTES = 1 << 18
"""So much of a body is read to its end though nobody wants it, and more if more than half of it is here. A connection
that is closed instead costs its learner four round trips and a slow start, and so the next round too: at 200 ms one
late answer would be followed by late ones for ever."""
IDLE_S = 30.0
"""A connection on which nothing is asked for so long is closed; the client dials anew when it needs one."""
MAX_CONNECTIONS = 16_384
MAX_CONNECTIONS_AN_IDENTITY = 2048
"""A learner of 256 ranks has eight each."""
CONTRIBUTION = re.compile(r"/v1/contribution/(\d{1,16})/(\d{1,9})")
SEED = re.compile(r"/v1/seed/(\d{1,9})")
FRAGMENT = re.compile(r"/v1/fragment/(\d{1,9})")


class BodyServer:
    """All connections of the road of one syncer. ``porter``: says what who has an identity may ask for. ``memory``:
    where the published values are that are offered to who is on this machine; None: everything is sent."""

    def __init__(
        self,
        desk: Desk,
        service: SyncerService,
        complaints: Complaints,
        *,
        stall_s: float,
        porter: Porter | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        self._memory = memory
        self._desk, self._service, self._complaints, self._stall_s = desk, service, complaints, stall_s
        self._porter = porter
        self._idle: set[BodyStream] = set()
        self._of: Counter[Identity] = Counter()
        self._open = 0
        self._stopping = False
        self.pace: Bucket | None = None
        """What goes out on all connections together is held to this."""

    async def serve(self, request: web.Request, shown: Shown | None) -> web.StreamResponse:
        """Switch a connection over, and answer on it until it ends; ``shown``: to whom."""
        if request.headers.get("Upgrade", "").lower() != UPGRADE:
            return web.Response(status=426, headers={"Upgrade": UPGRADE}, text=f"Upgrade: {UPGRADE} is needed\n")
        if self._open >= MAX_CONNECTIONS or self._stopping:
            return web.Response(status=503, text="come again\n")
        if shown is not None and self._of[shown.identity] >= MAX_CONNECTIONS_AN_IDENTITY:
            return web.Response(status=503, text=f"{shown.identity} has too many connections\n")
        headers = {"Upgrade": UPGRADE, "Connection": "Upgrade"}
        if self._memory is not None and self._memory.offer is not None:
            headers[MEMORY_HEADER] = self._memory.offer
        response = web.StreamResponse(status=101, headers=headers)
        await response.prepare(request)
        response.force_close()
        transport, protocol = request.transport, request.protocol
        if transport is None:
            return response
        stream = BodyStream(protocol.connection_lost)
        transport.set_protocol(stream)
        stream.connection_made(transport)
        self._open += 1
        if shown is not None:
            self._of[shown.identity] += 1
        try:
            await self._converse(stream, request.remote or "?", shown)
        finally:
            self._open -= 1
            if shown is not None:
                self._of[shown.identity] -= 1
                self._of = +self._of
            if stream.is_open:
                transport.set_protocol(protocol)
                stream.let_go()
            transport.close()
        return response

    def hang_up(self) -> None:
        self._stopping = True
        for stream in self._idle:
            stream.abort()

    async def _converse(self, stream: BodyStream, peer: str, shown: Shown | None) -> None:
        speaker = None if shown is None else LearnerId(shown.identity.name)

        def refusal(deed: Deed, path: str) -> Refusal | None:
            found = None if shown is None or self._porter is None else self._porter.refusal(shown, deed, "tensors")
            if found is not None:
                self._note(peer, found.kind, path, found.text)
            return found

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
            exchange = _Exchange(
                self._desk, self._service, stream, request, self._stall_s, self.pace, speaker, refusal, self._memory
            )
            try:
                if not await exchange.answer(lambda why, path: self._complain(peer, path, why, speaker)):
                    return
            except ConnectionLost:
                return
            except TimeoutError:
                stream.abort()
                return

    def _complain(self, peer: str, path: str, why: ProtocolError, speaker: LearnerId | None) -> None:
        if not isinstance(why, NotAsked | NotYours):
            self._service.seen.malformed += 1
        kind = f"name {speaker}" if isinstance(why, NotYours) else path.rpartition("/")[0][:40]
        self._note(peer, kind, path, str(why))

    def _note(self, peer: str, kind: str, path: str, text: str) -> None:
        self._complaints.note((peer, kind), f"{peer} {path[:100]}: {text[:500]}")


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
        speaker: LearnerId | None,
        refusal: Callable[[Deed, str], Refusal | None],
        memory: SharedMemory | None,
    ) -> None:
        self._desk, self._service, self._stream, self._request = desk, service, stream, request
        self._stall_s, self._pace = stall_s, pace
        self._speaker, self._refusal = speaker, refusal
        key, _, self._places = request.headers.get(MEMORY_HEADER, "").partition(" ")
        self._memory = memory if memory is not None and memory.is_key(key) else None
        """To be named to who asks: he has shown that he can read it."""
        self._unread = request.length > 0 and not request.resumes
        """A body is on its way that nobody has read to its end."""
        self._behind = TRAILER_BYTES if request.trails else 0
        self._missing = self._behind if self._places else request.length + self._behind
        self._began_at = stream.received_bytes
        """So many bytes are to come from there on."""

    async def answer(self, complain: Callable[[ProtocolError, str], None]) -> bool:
        """Carry it out; whether another one may follow on this connection."""
        path, reads = self._request.path, self._request.method == "GET"
        refusal = self._refusal(Deed.READ if reads else Deed.TRAIN, path)
        if refusal is not None:
            return await self._say(refusal.status, refusal.text.encode(), wait_s=refusal.wait_s)
        try:
            if reads:
                await self._hand_out()
                return not self._unread
            said = await self._take_in()
        except NotHere as nothing:
            return await self._say(nothing.status, str(nothing).encode())
        except NotAsked as old:
            complain(old, path)
            return await self._say(NOT_YOUR_TURN, str(old).encode(), reads_on=True)
        except NotYours as wrong:
            complain(wrong, path)
            return await self._say(403, str(wrong).encode())
        except ProtocolError as wrong:
            complain(wrong, path)
            return await self._say(400, str(wrong).encode())
        return await self._say(200, said, reads_on=True)

    async def _say(self, status: int, text: bytes, *, wait_s: float = 0.0, reads_on: bool = False) -> bool:
        """``reads_on``: what is still to come of an honest body that nobody wants any more is read and thrown away, if
        it is little."""
        headers = {"Retry-After": str(math.ceil(wait_s))} if wait_s else {}
        arrived = self._stream.received_bytes - self._began_at
        rest = self._missing - arrived
        reads_on = reads_on and self._unread and 0 <= rest <= max(READ_ON_BYTES, arrived)
        closes = self._unread and not reads_on
        reply = Reply(status=status, headers=headers, length=len(text), closes=closes)
        async with patience(self._stall_s) as time:
            await self._stream.send(encode(reply) + text)
            if reads_on:
                await self._stream.skip(rest, time.moved)
            elif self._unread:
                await self._stream.drain()  # who sends has to hear of it before the connection ends
        return not closes

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take_in(self) -> bytes:
        request = self._request
        if self._places and (self._memory is None or request.resumes):
            raise NotHere(UNSEEN, "nothing is read from memory for who does not show that he is on this machine")
        body = Inbound(
            headers=request.headers,
            length=request.length,
            pour=self._pour,
            resumes=request.resumes,
            trails=request.trails,
        )
        if found := CONTRIBUTION.fullmatch(request.path):
            return await self._desk.contribution(int(found[1]), Fragment(int(found[2])), body, speaker=self._speaker)
        if found := SEED.fullmatch(request.path):
            return await self._desk.seed(Fragment(int(found[1])), body, speaker=self._speaker)
        raise NotHere(404, "nothing is taken in there")

    async def _pour(self, upload: Upload | PieceUpload, moved: Callable[[], None]) -> None:
        if self._request.resumes:
            headers = {OFFSET_HEADER: str(upload.arrived), CHECKSUM_HEADER: f"{upload.crc:08x}"}
            await self._stream.send(encode(Reply(status=CONTINUE, headers=headers)))
            self._missing = self._request.length - upload.arrived + self._behind
            self._began_at = self._stream.received_bytes
        self._unread = True
        if self._places:
            try:
                await copy_from(self._places, upload, moved)
            except NotSeen as why:
                raise NotHere(UNSEEN, str(why)) from why
        else:
            await self._stream.fill(upload, moved)
        if self._behind:
            trailer = Bytes(self._behind)
            await self._stream.fill(trailer, moved)
            upload.expect(int.from_bytes(trailer.data, "big"))
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
        places = None if self._memory is None or self._pace is not None else self._memory.places(body.parts)
        named = {} if places is None else {MEMORY_HEADER: places}
        head = encode(Reply(status=200, headers=body.headers | named, length=body.length))
        async with patience(self._stall_s) as time:
            await self._stream.send(head)

            def sent(num_bytes: int) -> None:
                self._service.seen.traffic.down += num_bytes
                time.moved()

            if places is not None:  # the value stays what it is until he has it
                await self._stream.fill(Bytes(len(COPIED)), time.moved)
                sent(body.length)
                return
            for part in body.parts:
                await self._stream.send_body(part, sent, self._pace)
