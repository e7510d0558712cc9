"""The address of a syncer in waiting: it says that it is one, and nothing else."""

from __future__ import annotations

import logging
import ssl
from types import TracebackType

from aiohttp import web

from gruppetto.errors import AddressError

__all__ = ["Antechamber"]

_log = logging.getLogger("gruppetto.standby")


class Antechamber:
    """Listens while its block lasts, on the port that it gives: /healthz says "standby", all else 503, come again."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_route("*", "/{rest:.*}", _elsewhere)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)

    async def __aenter__(self) -> int:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        except OSError as wrong:
            await self._runner.cleanup()
            where = f"{self._host}:{self._port}"
            raise AddressError(
                f"cannot be listened on ({wrong.strerror})", where=where, fix="use a free port, or port 0"
            ) from wrong
        port: int = self._runner.addresses[0][1]
        _log.info("a standby, reachable at port %d", port)
        return port

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()


async def _healthz(request: web.Request) -> web.StreamResponse:
    return web.Response(text="standby\n")


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503, text="this is a standby; another syncer serves the run\n")
