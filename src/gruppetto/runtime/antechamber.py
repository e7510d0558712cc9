"""The address of a syncer in waiting: it says that it is one, and who serves the run."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from aiohttp import web

from gruppetto.files import json_in
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import ENDPOINT_FILE
from gruppetto.runtime.listening import cannot_listen, listening

__all__ = ["STANDBY_WORDS", "Antechamber", "who_serves"]

_log = logging.getLogger("gruppetto.standby")


STANDBY_WORDS = "this is a standby"
"""How its answers begin."""
NOWHERE = ("0.0.0.0", "::")


class Antechamber:
    """Listens while its block lasts, on the port that it gives: /healthz says "standby", all else 503, come again.

    Only who wants to see the page is sent on, to ``serving``: the address of who serves the run, "" while unknown.
    """

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, serving: Callable[[], str] = lambda: ""
    ) -> None:
        self._host, self._port, self._tls, self._serving = host, port, tls, serving
        app = web.Application()
        app.router.add_get("/healthz", _healthz)
        app.router.add_get("/dashboard{rest:/?.*}", self._page)
        app.router.add_route("*", "/{rest:.*}", self._elsewhere)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)

    async def __aenter__(self) -> int:
        await self._runner.setup()
        try:
            made = listening(self._host, self._port)
            if made is None:
                await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
            else:
                await web.SockSite(self._runner, made, ssl_context=self._tls).start()
        except OSError as wrong:
            await self._runner.cleanup()
            where = f"{self._host}:{self._port}"
            raise cannot_listen(wrong, where) from wrong
        port: int = self._runner.addresses[0][1]
        _log.info("a standby, reachable at port %d", port)
        return port

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.StreamResponse:
        serving = self._serving()
        if not serving:
            return await self._elsewhere(request)
        raise web.HTTPTemporaryRedirect(f"{serving}{request.rel_url.with_query(None)}")

    async def _elsewhere(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text=f"{STANDBY_WORDS}; {self._serving() or 'another syncer'} serves the run\n")


async def _healthz(request: web.Request) -> web.StreamResponse:
    return web.Response(text="standby\n")


def who_serves(state: Path) -> str:
    """The address that a syncer has left in its state directory; "" if there is none, or none that leads anywhere."""
    try:
        found = SyncerAddress.parse(json_in(state / ENDPOINT_FILE)["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if found.host in NOWHERE else str(found)
