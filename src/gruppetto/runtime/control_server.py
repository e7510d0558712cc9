"""The syncer's end of the control connections: frames both ways, from the HelloFrame to the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from aiohttp import ClientError, WSMsgType, web

from gruppetto.errors import ProtocolError
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.http_log import complain
from gruppetto.runtime.security.allowance import FRAMES, Allowance
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.wire import MAX_HELLO_BYTES, CloseCode

__all__ = ["ControlServer"]

MAX_CONNECTIONS = 8192
"""Every learner with an old process and a new one."""
MAX_CONTROLS_AN_IDENTITY = 4
"""Of one learner: of its old process, its new one, and of one that has not been found out yet."""
PINGS_A_LEASE = 2
"""A control connection whose peer has vanished without a word is found out by these, within a liveness period. Until
then its learner, whose heartbeats have a connection of their own, is live, and every round waits for its answer."""


class ControlServer:
    """Serves the WebSockets of ``/v1/control``. Whoever takes nothing in for ``stall_s`` is dropped."""

    def __init__(self, service: SyncerService, complaints: Complaints, *, stall_s: float) -> None:
        self._service, self._complaints, self._stall_s = service, complaints, stall_s
        self._open = 0
        self._of: Counter[LearnerId] = Counter()
        """How many each learner has, where learners have identities."""

    async def serve(self, request: web.Request, speaker: LearnerId | None) -> web.StreamResponse:
        """Until the connection ends. ``speaker``: in whose name alone something may be said on it; None: in any."""
        if self._open >= MAX_CONNECTIONS:
            return web.Response(status=503, text=f"{MAX_CONNECTIONS} learners are connected already\n")
        if speaker is not None and self._of[speaker] >= MAX_CONTROLS_AN_IDENTITY:
            complain(self._complaints, request, f"controls {speaker}", f"{speaker} has {self._of[speaker]} connections")
            return web.Response(status=503, text=f"{speaker} has too many control connections\n")
        socket = web.WebSocketResponse(
            max_msg_size=MAX_HELLO_BYTES, compress=False, heartbeat=self._stall_s / PINGS_A_LEASE
        )
        self._open += 1
        if speaker is not None:
            self._of[speaker] += 1
        try:
            await socket.prepare(request)
            await self._converse(request, socket, speaker)
        except ConnectionError:
            pass  # the peer has gone, perhaps while this process stood still: an answer to its ping reaches nobody
        except ProtocolError as wrong:
            self._service.seen.malformed += 1
            complain(self._complaints, request, "control", str(wrong))
            with suppress(OSError, TimeoutError, ClientError):
                await self._close(socket, CloseCode.PROTOCOL, str(wrong))
        finally:
            self._open -= 1
            if speaker is not None:
                self._of[speaker] -= 1
                self._of = +self._of
        return socket

    async def _converse(self, request: web.Request, socket: web.WebSocketResponse, speaker: LearnerId | None) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                first = await socket.receive()
        except TimeoutError:
            raise ProtocolError("no HelloFrame came") from None
        if first.type is not WSMsgType.BINARY:
            if first.type is WSMsgType.TEXT:
                raise ProtocolError("a control connection begins with a binary HelloFrame")
            return
        connection = self._service.greet(first.data, request.remote or "?", speaker=speaker)
        writer = asyncio.create_task(self._write(request, socket, connection))
        pace, loop = Allowance(FRAMES), asyncio.get_running_loop()
        try:
            async for message in socket:
                while (wait_s := pace.take(loop.time())) > 0:
                    complain(self._complaints, request, "pace", f"{connection.learner} says more than can be heard")
                    await asyncio.sleep(wait_s)
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
