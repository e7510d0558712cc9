"""The syncer's endpoints, thin around :class:`~gruppetto.runtime.service.SyncerService` (the list is in
:mod:`gruppetto.runtime.wire`).

Nothing here waits for ever: whoever moves next to nothing for ``stall_s`` is dropped, whatever the size of the
transfer. What becomes of bodies is decided at the :class:`~gruppetto.runtime.desk.Desk`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import ClientError, web

from gruppetto.errors import ConnectionLost, ProtocolError, SettingError, StateError
from gruppetto.protocol.units import Fragment, LearnerId
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.body_server import BodyServer
from gruppetto.runtime.body_wire import BODIES_PATH
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.control_server import ControlServer
from gruppetto.runtime.desk import Desk, Inbound, NotHere
from gruppetto.runtime.headers import NOT_YOUR_TURN, ROUND_HEADER, WALL_HEADER
from gruppetto.runtime.http_log import complain, request_log
from gruppetto.runtime.intake import Upload
from gruppetto.runtime.pacing import in_turn, set_up
from gruppetto.runtime.security.identity import Deed
from gruppetto.runtime.security.porter import Porter, Shown
from gruppetto.runtime.security.strangers import KNOWN, Strangers
from gruppetto.runtime.security.watch import Watch
from gruppetto.runtime.service import NotAsked, NotYours, SyncerService
from gruppetto.runtime.shard_map import DIRECTORY_PATH, MAX_MAP_BYTES, decode_place
from gruppetto.runtime.shared_memory import SharedMemory

__all__ = ["HttpServer"]

_log = logging.getLogger("gruppetto.syncer")

CHUNK_BYTES = 1 << 20
"""Bodies leave in chunks of this size: a stall is noticed between two of them."""
MAX_HEARTBEAT_BYTES = 4096
MAX_MODEL_STREAMS = 4
"""Each may hold on to one old value of the whole model."""
CHECKPOINT_PATH = "/v1/checkpoint"
MAX_NAME_BYTES = 128

SHOWN: Any = getattr(web, "RequestKey", str)("shown")
"""Under this a request keeps who asks, where identities are asked for. Older versions of the library know no keys."""
PLAIN_BODIES = ("", "identity")
"""Nothing is unpacked here: a small body can never become a large one."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """An aiohttp application. ``token``: what every request must show; None lets everybody in. ``control``: what may be
    shown instead to ask for a checkpoint, which takes an identity in any case. With a ``porter`` everybody who asks has
    an identity of his own, a learner speaks in its own name alone, and there is no ``token``."""

    def __init__(
        self,
        service: SyncerService,
        *,
        token: str | None,
        control: str = "",
        stall_s: float,
        porter: Porter | None = None,
        strangers: Strangers | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        self._service, self.stall_s = service, stall_s
        self._porter, self._strangers = porter, strangers
        self.watch: Watch | None = None
        """Whose account belongs to the status."""
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._control_expected = f"Bearer {control}".encode() if control else None
        self._model_streams = 0
        self._complaints = Complaints(_log)
        self.desk = Desk(service, stall_s)
        self.controls = ControlServer(service, self._complaints, stall_s=stall_s)
        self.bodies = BodyServer(self.desk, service, self._complaints, stall_s=stall_s, porter=porter, memory=memory)
        self.request_log = request_log(_log, self._complaints)
        self.app = web.Application(middlewares=[self._guard])
        self.app[KNOWN] = self._is_known
        self.app.add_routes(
            [
                web.get("/healthz", _healthz),
                web.get("/v1/control", self._control),
                web.post("/v1/heartbeat", self._heartbeat),
                web.put(r"/v1/contribution/{round:\d{1,16}}/{fragment:\d{1,9}}", self._contribution),
                web.put(r"/v1/seed/{fragment:\d{1,9}}", self._seed),
                web.get(r"/v1/fragment/{fragment:\d{1,9}}", self._fragment),
                web.get(BODIES_PATH, self._bodies),
                web.get("/v1/status", self._status),
                web.get("/v1/model", self._model),
                web.get(DIRECTORY_PATH, self._directory),
                web.put(DIRECTORY_PATH, self._announcement),
                web.post(CHECKPOINT_PATH, self._take_checkpoint),
                web.get(CHECKPOINT_PATH, self._checkpoint),
                web.get(r"/v1/revoked/{serial:[0-9a-f]{1,40}}", self._revoked),
            ]
        )

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Who may ask, and what becomes of nonsense."""
        if request.headers.get("Content-Encoding", "").lower() not in PLAIN_BODIES:
            self._complain(request, "encoding", "a packed body")
            return web.Response(status=415, text="bodies come as they are, without Content-Encoding\n")
        controls = request.path == CHECKPOINT_PATH
        if (self._expected is not None or controls or self._porter is not None) and request.path != "/healthz":
            shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
            accepted = [self._expected, self._control_expected if controls else None]
            if not any(good is not None and hmac.compare_digest(shown, good) for good in accepted):
                if self._porter is not None:
                    return await self._of_somebody(request, handler, self._porter)
                self._complain(request, "token", "no token, or a wrong one")
                return web.Response(status=401, text="a valid token is needed: Authorization: Bearer TOKEN\n")
        if self._porter is None:
            self._is_known(request)
        return await self._answer(request, handler)

    async def _of_somebody(self, request: web.Request, handler: Handler, porter: Porter) -> web.StreamResponse:
        """Where everybody has an identity: whose request this is, and whether he may ask for it, and now."""
        shown = porter.who(request)
        if shown is None:
            self._complain(request, "identity", "no certificate or token that counts")
            return web.Response(status=401, text="a certificate or a token of this run is needed, one that counts\n")
        refusal = porter.refusal(shown, *_asked_for(request))
        if refusal is not None:
            self._complain(request, refusal.kind, refusal.text)
            later = {"Retry-After": str(math.ceil(refusal.wait_s))} if refusal.wait_s else {}
            return web.Response(status=refusal.status, headers=later, text=f"{refusal.text}\n")
        self._is_known(request)
        request[SHOWN] = shown
        with porter.inside(shown, request.transport):
            return await self._answer(request, handler)

    def _is_known(self, request: web.Request) -> None:
        if self._strangers is not None:
            self._strangers.known(request.protocol)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except NotHere as nothing:
            return web.Response(status=nothing.status, text=f"{nothing}\n")
        except NotAsked as old:
            self._complain(request, request.match_info.handler.__name__, str(old))
            return web.Response(status=NOT_YOUR_TURN, text=f"{old}\n")
        except NotYours as wrong:
            self._complain(request, f"name {_speaker(request)}", str(wrong))
            return web.Response(status=403, text=f"{wrong}\n")
        except ProtocolError as wrong:
            self._service.seen.malformed += 1
            self._complain(request, request.match_info.handler.__name__, str(wrong))
            return web.Response(status=400, text=f"{wrong}\n")

    def _complain(self, request: web.Request, kind: str, text: str) -> None:
        complain(self._complaints, request, kind, text)

    def review(self) -> None:
        """Something has happened: give up the bodies that nobody wants any more."""
        self.desk.review()

    def hang_up(self) -> None:
        """The syncer stops: connections that only wait for the next body are closed, the others after theirs."""
        self.bodies.hang_up()

    # ── control ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _control(self, request: web.Request) -> web.StreamResponse:
        return await self.controls.serve(request, _speaker(request))

    async def _heartbeat(self, request: web.Request) -> web.StreamResponse:
        length = _content_length(request)
        if length > MAX_HEARTBEAT_BYTES:
            raise ProtocolError(f"a heartbeat of {length} bytes")
        try:
            async with asyncio.timeout(self.stall_s):
                data = await request.content.readexactly(length)
        except (asyncio.IncompleteReadError, OSError, TimeoutError, ClientError):
            raise ProtocolError("the heartbeat was cut short") from None
        self._service.heartbeat(data, speaker=_speaker(request), wall_s=request.headers.get(WALL_HEADER))
        return web.Response(status=204)

    # ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _contribution(self, request: web.Request) -> web.StreamResponse:
        round, body = int(request.match_info["round"]), _inbound(request)
        said = await self.desk.contribution(round, _fragment_of(request), body, speaker=_speaker(request))
        return web.Response(body=said, content_type="application/msgpack")

    async def _seed(self, request: web.Request) -> web.StreamResponse:
        said = await self.desk.seed(_fragment_of(request), _inbound(request), speaker=_speaker(request))
        return web.Response(body=said, content_type="application/msgpack")

    async def _fragment(self, request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("version", "0")
        with self.desk.fragment(_fragment_of(request), wanted, request.headers) as found:
            return await self._stream(request, found.headers, found.length, found.parts)

    async def _bodies(self, request: web.Request) -> web.StreamResponse:
        return await self.bodies.serve(request, request.get(SHOWN))

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
        if request.transport is not None:
            set_up(request.transport.get_extra_info("socket"))
        try:
            await response.prepare(request)
            for part in parts:
                async for chunk in in_turn(part, self.bodies.pace, most_bytes=CHUNK_BYTES):
                    async with asyncio.timeout(self.stall_s):
                        # A copy: what the socket still holds when the reader has gone must not change under it.
                        await response.write(bytes(chunk))
                    self._service.seen.traffic.down += chunk.nbytes
            await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except OSError:
            pass  # the reader has gone
        return response

    # ── shards ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _directory(self, request: web.Request) -> web.StreamResponse:
        body = msgspec.json.encode(self._service.directory.map())
        return web.Response(body=body, content_type="application/json")

    async def _announcement(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self.stall_s):
                data = await request.content.readexactly(min(_content_length(request), MAX_MAP_BYTES))
        except (asyncio.IncompleteReadError, OSError, TimeoutError, ClientError):
            raise ProtocolError("the announcement was cut short") from None
        try:
            self._service.hear_of(decode_place(data), request.remote or "")
        except SettingError as wrong:
            self._complain(request, "announcement", str(wrong))
            return web.Response(status=409, text=f"{wrong}\n")
        return await self._directory(request)

    # ── checkpoints of the whole run ─────────────────────────────────────────────────────────────────────────────

    async def _take_checkpoint(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("name", "")
        if len(name) > MAX_NAME_BYTES:
            raise ProtocolError(f"a name of {len(name)} characters; at most {MAX_NAME_BYTES} are allowed")
        try:
            report = self._service.take_checkpoint(name)
        except StateError as wrong:
            return web.Response(status=409, text=f"{wrong}\n")
        status = 409 if report["stage"] == "refused" else 202
        return web.Response(status=status, body=msgspec.json.encode(report), content_type="application/json")

    async def _checkpoint(self, request: web.Request) -> web.StreamResponse:
        report = self._service.checkpoint_report()
        if report is None:
            return web.Response(status=404, text="nobody has asked for a checkpoint\n")
        return web.Response(body=msgspec.json.encode(report), content_type="application/json")

    async def _revoked(self, request: web.Request) -> web.StreamResponse:
        """For learners: whether they should give their state to whoever shows that certificate."""
        known = self._porter is not None and self._porter.is_revoked(request.match_info["serial"])
        return web.Response(status=410 if known else 204)

    async def _status(self, request: web.Request) -> web.StreamResponse:
        account = {} if self.watch is None else {"security": self.watch.account()}
        body = msgspec.json.encode({**self._service.status(), **account})
        return web.Response(body=body, content_type="application/json")


async def _healthz(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


def _fragment_of(request: web.Request) -> Fragment:
    return Fragment(int(request.match_info["fragment"]))


def _speaker(request: web.Request) -> LearnerId | None:
    """In whose name alone this may be said; None where identities are not asked for."""
    shown: Shown | None = request.get(SHOWN)
    return None if shown is None else LearnerId(shown.identity.name)


def _asked_for(request: web.Request) -> tuple[Deed, str]:
    """What a request is about, and as what it counts."""
    kind = request.path.split("/")[2] if request.path.startswith("/v1/") else ""
    match kind:
        case "control" | "heartbeat":
            return Deed.TRAIN, kind
        case "contribution" | "seed":
            return Deed.TRAIN, "tensors"
        case "fragment" | "model" | "bodies":  # what is asked for on the road of bodies, its server looks at
            return Deed.READ, "tensors"
        case "checkpoint":
            return Deed.MARK, "looks"
        case "directory" if request.method != "GET":
            return Deed.SERVE, "looks"
        case _:
            return Deed.LOOK, "looks"


def _inbound(request: web.Request) -> Inbound:
    length = _content_length(request)

    async def pour(upload: Upload | PieceUpload, moved: Callable[[], None]) -> None:
        try:
            async for chunk in request.content.iter_any():
                upload.write(chunk)
                moved()
        except (OSError, ClientError, web.RequestPayloadError) as wrong:
            raise ConnectionLost(str(wrong)) from wrong

    return Inbound(headers=request.headers, length=length, pour=pour)


def _content_length(request: web.Request) -> int:
    if request.content_length is None:
        raise web.HTTPLengthRequired(text="Content-Length is needed\n")
    return request.content_length
