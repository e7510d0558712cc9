"""The syncer's endpoints, called from a learner's event loop (the list is in :mod:`gruppetto.runtime.wire`).

Three kinds of trouble: :class:`ConnectionLost` passes by itself, :class:`ProtocolError` is the syncer's no to one
request, :class:`AddressError` is for a person to mend. A transfer has no total time limit: it fails when no byte has
moved for ``stall_s``, however long it takes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray
from yarl import URL

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.body_client import Differs, Road, RoadReply
from gruppetto.runtime.body_wire import Request
from gruppetto.runtime.coming import what_comes
from gruppetto.runtime.control_socket import ControlSocket
from gruppetto.runtime.dialling import HEAD_START_S, Segments
from gruppetto.runtime.headers import (
    ANSWER_HEADER,
    BASE_HEADER,
    CHECKSUM_HEADER,
    CODEC_HEADER,
    INCARNATION_HEADER,
    LEARNER_HEADER,
    NOT_YOUR_TURN,
    RANK_HEADER,
    RESULT_HEADER,
    RUNS_HEADER,
    TOO_OFTEN,
)
from gruppetto.runtime.http_trouble import dial_trouble, why_not
from gruppetto.runtime.landing import Landing
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.pacing import Bucket, in_turn, set_up
from gruppetto.runtime.patience import patience
from gruppetto.runtime.shard_map import DIRECTORY_PATH, MAX_MAP_BYTES, ShardMap, decode_map
from gruppetto.runtime.sinks import Sink
from gruppetto.runtime.steps import Held
from gruppetto.runtime.verdict import verdict_of
from gruppetto.runtime.wire import (
    MAX_FRAME_BYTES,
    checksum,
    encode_answer,
)

__all__ = ["HttpSyncer"]

CHUNK_BYTES = 1 << 19
"""Bodies leave in chunks of this size: big enough to be cheap, small enough to notice a stall."""
PING_S = 5.0
"""A control connection on which neither a frame nor a pong has come for one and a half of this is given up. Heartbeats
go on meanwhile on their own connection: until one of the ends knows, rounds spend their whole grace window on us."""
DIAL_S = 10.0
"""For making a connection. What was sent into a cut is sent again later and later: a new one is there sooner."""
MAX_TEXT_BYTES = 4096
"""Read of an error's text."""


class HttpSyncer:
    """An asynchronous context manager around one pool of connections. ``token`` never shows in a repr, log or error."""

    def __init__(
        self,
        address: SyncerAddress,
        *,
        token: str | None,
        tls: ssl.SSLContext | None,
        stall_s: float,
        dial_s: float | None = None,
        rank: str = "",
    ) -> None:
        """``dial_s``: how long making a connection may take. ``rank``: which of many."""
        self.address, self.stall_s = address, stall_s
        self._dial_s = min(DIAL_S, stall_s) if dial_s is None else dial_s
        self.segments = Segments()
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._rank = {RANK_HEADER: rank} if rank else {}
        self._headers |= self._rank
        self._tls = tls
        self._road = Road(self._headers, tls, self.segments, dial_s=self._dial_s)
        self._session: aiohttp.ClientSession | None = None
        self.bytes_up, self.bytes_down = 0, 0
        self.pace: Bucket | None = None
        """What goes up is held to this."""

    def room(self, numel: int) -> NDArray[np.float32]:
        """Fresh memory for bodies that are to go up: best where the syncer can read it."""
        return self._road.room(numel)

    async def __aenter__(self) -> HttpSyncer:
        self._session = self._new_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        self._road.close()
        await self._session.close()

    async def forget(self) -> None:
        """Drop all connections that wait for use. What has ended the control connection may have taken them along, and
        nobody has been told: a host that is gone, a gateway that has forgotten them, an address that has moved."""
        self._road.close()
        old, self._session = self._http, self._new_session()
        await old.close()

    @asynccontextmanager
    async def control(self) -> AsyncIterator[ControlSocket]:
        """An open control connection; nothing has been said on it yet."""
        small = self.segments.small
        try:
            async with asyncio.timeout(self._dial_s):
                socket = await self._http.ws_connect(
                    self.address.url("/v1/control"), heartbeat=PING_S, max_msg_size=MAX_FRAME_BYTES
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as wrong:
            if isinstance(wrong, TimeoutError):
                self.segments.stalled(small=small)
            raise dial_trouble(self.address, self._tls, wrong) from wrong
        try:
            yield ControlSocket(socket, self.address, self.stall_s, partial(self.segments.stalled, small=small))
        finally:
            await socket.close()

    async def directory(self, address: SyncerAddress | None = None) -> ShardMap | None:
        """Where the shards of the run are, as the syncer at ``address`` says (default: this one); None if whoever is
        there knows nothing of the kind."""
        where = self.address if address is None else address
        try:
            async with (
                asyncio.timeout(self._dial_s),
                self._http.get(where.url(DIRECTORY_PATH)) as reply,
            ):
                if reply.status >= 500:
                    raise ConnectionLost(f"{where} does not serve the run at this moment (HTTP {reply.status})")
                if reply.status != 200 or (reply.content_length or 0) > MAX_MAP_BYTES:
                    return None
                return decode_map(await reply.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as wrong:
            raise dial_trouble(self.address, self._tls, wrong) from wrong

    async def counts(self, serial: str) -> bool:
        """Whether the certificate of that serial number is not revoked. Raises :class:`ConnectionLost` or
        :class:`AddressError` if the syncer cannot be asked."""
        if self._session is None or self._session.closed:
            raise ConnectionLost(f"{self.address} is not connected")
        where = self.address.url(f"/v1/revoked/{serial}")
        try:
            async with asyncio.timeout(self._dial_s), self._session.get(where) as reply:
                if reply.status not in (204, 410):
                    raise ConnectionLost(f"{self.address} does not say who counts (HTTP {reply.status})")
                return reply.status == 204
        except (aiohttp.ClientError, OSError, TimeoutError) as wrong:
            raise dial_trouble(self.address, self._tls, wrong) from wrong

    async def fetch(
        self,
        fragment: Fragment,
        version: Version,
        layout_hash: str,
        into: Lease,
        *,
        runs: Runs | None = None,
        landing: Landing | None = None,
    ) -> Version:
        """Download a fragment, or ``runs`` of it, of this version or a newer one; the version that came. ``landing``:
        what an earlier try has left, and what this one will leave if it breaks off."""
        came, _ = await self.fetch_from(None, fragment, version, layout_hash, into, runs=runs, landing=landing)
        return came

    async def fetch_from(
        self,
        held: Held | None,
        fragment: Fragment,
        version: Version,
        layout_hash: str,
        into: Lease,
        *,
        runs: Runs | None = None,
        landing: Landing | None = None,
    ) -> tuple[Version, str]:
        """The same, where a step may lead there from ``held``; and the name of what is in ``into``, as in
        :data:`~gruppetto.runtime.headers.BASE_HEADER`."""
        if runs is not None and not runs.bounds:
            return version, ""  # this rank has no part of it
        landing = Landing(into) if landing is None else landing
        path, headers = f"/v1/fragment/{fragment}?version={version}", _of_runs(runs) | landing.said()
        if held is not None:
            headers[BASE_HEADER] = held.name
        async with self._request("GET", path, headers=headers) as (reply, moved):
            coming = what_comes(reply.headers, reply.length, fragment, into.values.size, layout_hash, held)
            landing.begin(coming.version, coming.codec, coming.offset, is_step=coming.is_step)
            before = landing.at
            try:
                await reply.pour(landing, moved)
            finally:
                self.bytes_down += landing.at - before
        if reply.headers.get(CHECKSUM_HEADER) != f"{landing.crc:08x}":
            landing.forget()
            raise ConnectionLost(f"fragment {fragment} was damaged on its way (checksum)")
        if held is not None and coming.is_step:
            try:
                await held.follow(landing.body, reply.headers, into.values)
            finally:
                landing.forget()
            return coming.version, reply.headers[RESULT_HEADER]
        name = f"{landing.crc:08x}"
        landing.finish()
        return coming.version, name

    async def contribute(
        self, answer: Answer, codec: str, body: memoryview, *, runs: Runs | None = None, again: bool = False
    ) -> tuple[bool, int]:
        """Upload one contribution, or ``runs`` of it; whether the syncer has taken it, and of how many tokens the one
        is made that this learner has in that round: an earlier try, or an older snapshot, may be in already. 0: none
        is. ``again``: an earlier try broke off, and the syncer may have a part of it."""
        headers = {ANSWER_HEADER: encode_answer(answer), CODEC_HEADER: codec, **_of_runs(runs)}
        return verdict_of(await self._put(f"/v1/contribution/{answer.round}/{answer.fragment}", headers, body, again))

    async def seed(
        self,
        learner: LearnerId,
        incarnation: Incarnation,
        fragment: Fragment,
        body: memoryview,
        *,
        runs: Runs | None = None,
        again: bool = False,
    ) -> None:
        """Upload the initial weights of one fragment, or ``runs`` of them, float32."""
        headers = {LEARNER_HEADER: learner, INCARNATION_HEADER: str(incarnation), CODEC_HEADER: "fp32"}
        await self._put(f"/v1/seed/{fragment}", headers | _of_runs(runs), body, again)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(
                limit_per_host=16,
                ssl=self._tls if self._tls is not None else True,
                use_dns_cache=False,
                happy_eyeballs_delay=HEAD_START_S,
                socket_factory=self._make,
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._dial_s),
            read_bufsize=CHUNK_BYTES,
            auto_decompress=False,
        )

    def _make(self, info: tuple[Any, ...]) -> socket.socket:
        """A socket for one address. It may come to carry bodies: nobody knows yet whether there is a road for them."""
        made = self.segments.make(info)
        set_up(made, info[4][0])
        return made

    @property
    def _http(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use it as a context manager"
        return self._session

    async def _put(self, path: str, headers: dict[str, str], body: memoryview, again: bool) -> bytes:
        try:
            async with self._request("PUT", path, headers=headers, body=body, again=again) as (reply, _):
                return await reply.read(MAX_TEXT_BYTES)
        except Differs:
            async with self._request("PUT", path, headers=headers, body=body) as (reply, _):
                return await reply.read(MAX_TEXT_BYTES)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, *, headers: dict[str, str], body: memoryview | None = None, again: bool = False
    ) -> AsyncIterator[tuple[RoadReply | _HttpReply, Callable[[], None]]]:
        """One request; the reply, and what to call whenever a byte has moved."""
        address, small = self.address, self.segments.small
        try:
            async with patience(self.stall_s) as time:
                moved = time.moved

                def sent(num_bytes: int) -> None:
                    self.bytes_up += num_bytes
                    moved()

                stream = await self._road.open(address)
                moved()
                small = self.segments.small if stream is None else stream.small
                if stream is None:
                    asked: _Asked = self._by_http(method, address.url(path), headers, body, sent)
                else:
                    length = 0 if body is None else body.nbytes
                    said = self._rank | headers
                    request = Request(
                        method=method, path=path, headers=said, length=length, resumes=again, trails=body is not None
                    )
                    asked = self._road.ask(stream, address, request, body, moved, sent, self.pace)
                async with asked as reply:
                    moved()
                    if reply.status != 200:
                        text = f"HTTP {reply.status}, {await _said(reply)}"
                        if reply.status >= 500 or reply.status in (NOT_YOUR_TURN, TOO_OFTEN):
                            raise ConnectionLost(text)
                        raise ProtocolError(f"{method} {address.url(path)}: {text}")
                    yield reply, moved
        except ConnectionLost as wrong:
            raise type(wrong)(f"{method} {address.url(path)}: {wrong}") from wrong
        except (aiohttp.ClientError, OSError, TimeoutError) as wrong:
            if isinstance(wrong, TimeoutError):
                self.segments.stalled(small=small)
                self._road.close()  # what is idle was made no later
            raise ConnectionLost(f"{method} {address.url(path)}: {why_not(wrong)}") from wrong

    @asynccontextmanager
    async def _by_http(
        self, method: str, url: str, headers: dict[str, str], body: memoryview | None, sent: Callable[[int], None]
    ) -> AsyncIterator[_HttpReply]:
        """Where there is no road for bodies: a proxy that does not let it through, say."""
        data = None
        if body is not None:
            headers = headers | {"Content-Length": str(body.nbytes), CHECKSUM_HEADER: f"{checksum(body):08x}"}
            data = _chunks(body, sent, self.pace)
        async with self._http.request(method, URL(url, encoded=True), headers=headers, data=data) as reply:
            yield _HttpReply(reply)


async def _chunks(
    body: memoryview, sent: Callable[[int], None], pace: Bucket | None = None
) -> AsyncIterator[memoryview]:
    async for chunk in in_turn(body, pace, most_bytes=CHUNK_BYTES):
        yield chunk
        sent(chunk.nbytes)


class _HttpReply:
    """What came by HTTP, in the shape of a :class:`~gruppetto.runtime.body_client.RoadReply`."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply
        self.status, self.headers, self.length = reply.status, reply.headers, reply.content_length

    async def pour(self, sink: Sink, moved: Callable[[], None]) -> None:
        async for chunk in self._reply.content.iter_any():
            sink.room()[: len(chunk)] = chunk
            sink.wrote(len(chunk))
            moved()

    async def read(self, limit: int) -> bytes:
        return await self._reply.content.read(limit)


_Asked = AbstractAsyncContextManager[RoadReply | _HttpReply]


def _of_runs(runs: Runs | None) -> dict[str, str]:
    return {} if runs is None else {RUNS_HEADER: runs.encode()}


async def _said(reply: RoadReply | _HttpReply) -> str:
    lines = (await reply.read(MAX_TEXT_BYTES)).decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else "no reason given"
