"""A learner's end of the control connection, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.http_trouble import why_not
from gruppetto.runtime.wire import CloseCode, Frame, decode_frame, encode_frame

__all__ = ["ControlSocket", "NotAccepted"]


class NotAccepted(ProtocolError):
    """The syncer closed the control connection because of what this learner said on it: to say it again is useless."""

    exit_code = 2


class ControlSocket:
    """An open control connection."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        address: SyncerAddress,
        stall_s: float,
        stalled: Callable[[], None],
    ) -> None:
        """``stalled``: see the method."""
        self._socket, self._address, self._stall_s, self.stalled = socket, address, stall_s, stalled

    async def send(self, frame: Frame) -> None:
        """Hand one frame to the network. Raises :class:`ConnectionLost`."""
        try:
            async with asyncio.timeout(self._stall_s):
                await self._socket.send_bytes(encode_frame(frame))
        except (aiohttp.ClientError, OSError, TimeoutError) as wrong:
            raise ConnectionLost(f"{self._address}: the control connection broke ({why_not(wrong)})") from wrong

    async def receive(self, allowed: frozenset[str]) -> Frame:
        """The next frame. Raises :class:`ConnectionLost` when none will come, :class:`ProtocolError` for nonsense."""
        try:
            message = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as wrong:
            # It answers pings by itself, also when nobody is there any more.
            raise ConnectionLost(f"{self._address}: the control connection broke ({why_not(wrong)})") from wrong
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                return decode_frame(message.data, allowed)
            case aiohttp.WSMsgType.TEXT:
                raise ProtocolError(f"{self._address} sent text on the control connection, where only frames may come")
            case _:
                code = self._socket.close_code
                said = message.extra if isinstance(message.extra, str) and message.extra else f"code {code}"
                if code == CloseCode.PROTOCOL and message.type is not aiohttp.WSMsgType.ERROR:
                    raise NotAccepted(f"{self._address} does not accept what this learner says: {said}")
                raise ConnectionLost(f"{self._address}: the control connection was closed ({said})")

    async def close(self) -> None:
        """Say that nothing more will come."""
        await self._socket.close()
