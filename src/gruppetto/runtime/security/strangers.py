"""Connections on which nobody has made himself known yet: boundedly many, each for a bounded time.

The HTTP library waits for ever for the first header of a connection, however slowly it comes. Here a connection that
has not brought a request of somebody who may ask within ``patience_s`` is broken off, and when there are too many of
them the oldest goes first, so that there is always room for one that means it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ssl import SSLContext
from typing import Any

from aiohttp import web

from gruppetto.runtime.listening import listening

__all__ = ["KNOWN", "MAX_STRANGERS", "PATIENCE_S", "Strangers", "WatchedSite"]

PATIENCE_S = 10.0
"""For TLS and the first request; a host at the end of the world takes two of them."""
MAX_STRANGERS = 512
KNOWN: web.AppKey[Callable[[web.Request], None]] = web.AppKey("known")
"""What an application is to call with a request of somebody who may ask."""


class Strangers:
    """Knows the connections that are still to make themselves known, and when each of them came."""

    def __init__(self, *, now: Callable[[], float], patience_s: float = PATIENCE_S, most: int = MAX_STRANGERS) -> None:
        self._now, self._most, self.patience_s = now, most, patience_s
        self._since: dict[asyncio.BaseProtocol, float] = {}
        self.broken_off = 0

    def __len__(self) -> int:
        return len(self._since)

    def watched(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """Makes protocols as ``make`` does, each of them a stranger's at first."""

        def one() -> Any:
            protocol = make()
            self._since[protocol] = self._now()
            if len(self._since) > self._most:
                self._make_room()
            return protocol

        return one

    def known(self, protocol: asyncio.BaseProtocol) -> None:
        """Somebody who may ask has asked on it."""
        self._since.pop(protocol, None)

    def sweep(self) -> None:
        """Break off those who have had their time."""
        now = self._now()
        for protocol, since in list(self._since.items()):
            transport = _transport_of(protocol)
            if transport is None:
                # Not connected yet (the handshake has a time limit of its own), or not any more.
                if now - since > 2 * self.patience_s:
                    del self._since[protocol]
            elif now - since > self.patience_s:
                self._break_off(protocol, transport)

    def _make_room(self) -> None:
        for protocol in list(self._since):
            transport = _transport_of(protocol)
            if transport is not None:
                self._break_off(protocol, transport)
                return

    def _break_off(self, protocol: asyncio.BaseProtocol, transport: asyncio.Transport) -> None:
        del self._since[protocol]
        if not transport.is_closing():
            self.broken_off += 1
            transport.abort()


def _transport_of(protocol: asyncio.BaseProtocol) -> asyncio.Transport | None:
    transport = getattr(protocol, "transport", None)
    return transport if isinstance(transport, asyncio.Transport) else None


class WatchedSite(web.BaseSite):
    """A :class:`aiohttp.web.TCPSite` whose connections begin as strangers'."""

    __slots__ = ("_host", "_port", "_strangers")

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, strangers: Strangers, ssl_context: SSLContext | None
    ) -> None:
        super().__init__(runner, ssl_context=ssl_context)
        self._host, self._port, self._strangers = host, port, strangers

    @property
    def name(self) -> str:
        return f"{'https' if self._ssl_context else 'http'}://{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        server = self._runner.server
        assert server is not None
        made = listening(self._host, self._port)
        where: dict[str, Any] = {"sock": made}
        if made is None:
            where = {"host": self._host, "port": self._port, "family": socket.AF_UNSPEC}
        self._server = await asyncio.get_running_loop().create_server(
            self._strangers.watched(server),
            **where,
            ssl=self._ssl_context,
            ssl_handshake_timeout=None if self._ssl_context is None else self._strangers.patience_s,
            backlog=self._backlog,
        )
