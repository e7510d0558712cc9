"""The page alone: of a run directory on this machine, or of a syncer elsewhere, which is asked for the looker."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from gruppetto.dashboard.book import Book
from gruppetto.dashboard.desk import Desk
from gruppetto.dashboard.door import Door
from gruppetto.dashboard.pages import HEADERS, METRICS, ROOT, Pages
from gruppetto.errors import AddressError, DataError
from gruppetto.report.rundir import TRACE
from gruppetto.report.traces import shard_of
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.listening import cannot_listen
from gruppetto.runtime.setting import host_and_port, is_loopback
from gruppetto.trace.log import is_trace

__all__ = ["directory_app", "serve_pages", "syncer_app", "trace_of"]

CONNECT_S = 10.0
PASSED_ON = ("Content-Type", "Content-Disposition", "Retry-After")


def trace_of(target: Path) -> Path:
    """The trace of a run directory, or the file itself. Raises :class:`DataError`."""
    path = target / TRACE if target.is_dir() else target
    if not path.is_file():
        raise DataError("holds no trace.jsonl", where=str(target), fix="name a run directory or a trace")
    if path.stat().st_size and not is_trace(path):
        raise DataError("is not a trace", where=str(path), fix="name a run directory or a trace")
    return path


def directory_app(trace: Path, token: str | None = None) -> web.Application:
    """The page of the trace at ``trace``, which may still be growing."""
    app, clock = web.Application(), MonotonicClock()
    desk = Desk(Book(trace, clock), clock)
    Pages(desk, token=token, shard=shard_of(trace)).join(app)

    async def begin(app: web.Application) -> None:
        app[_READING] = asyncio.create_task(desk.catch_up())  # before anybody asks

    app.on_startup.append(begin)
    return app


def syncer_app(
    address: SyncerAddress, syncer_token: str | None, token: str | None = None, *, tls: ssl.SSLContext | None = None
) -> web.Application:
    """The page of a syncer elsewhere. Its token, or the certificate, stays here: the browser never sees it."""
    app, door = web.Application(), Door(token)
    shown = {} if syncer_token is None else {"Authorization": f"Bearer {syncer_token}"}

    async def session(app: web.Application) -> None:
        app[_SESSION] = ClientSession(
            headers=shown,
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=TCPConnector(ssl=True if tls is None else tls),
        )

    async def close(app: web.Application) -> None:
        await app[_SESSION].close()

    async def pass_on(request: web.Request) -> web.StreamResponse:
        if not door.lets_in(request):
            return web.Response(status=403, text="give the token, or come by 127.0.0.1\n", headers=HEADERS)
        if request.path == "/":
            return web.Response(status=302, headers={**HEADERS, "Location": f"{ROOT}/"})
        try:
            to = address.url(request.path_qs)
            async with app[_SESSION].request(request.method, to, allow_redirects=False) as reply:
                headers = {name: reply.headers[name] for name in PASSED_ON if name in reply.headers}
                response = web.StreamResponse(status=reply.status, headers={**HEADERS, **headers})
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                return response
        except (ClientError, OSError, TimeoutError):
            text = f"{address} does not answer; is the syncer running there?\n"
            return web.Response(status=502, text=text, headers=HEADERS)

    app.on_startup.append(session)
    app.on_cleanup.append(close)
    app.add_routes([web.get("/", pass_on), web.get(f"{ROOT}/{{tail:.*}}", pass_on), web.get(METRICS, pass_on)])
    return app


_READING: web.AppKey[asyncio.Task[None]] = web.AppKey("reading", asyncio.Task)
_SESSION: web.AppKey[ClientSession] = web.AppKey("session", ClientSession)


def serve_pages(
    app: web.Application, listen: str, *, on_ready: Callable[[str], None], token: str | None, allow_plaintext: bool
) -> None:
    """Serve until a SIGTERM or SIGINT comes. Raises :class:`AddressError`."""
    host, _ = host_and_port(listen)
    if not is_loopback(host) and not (token is not None and allow_plaintext):
        raise AddressError(
            "is reachable from other machines, and speaks no TLS",
            where=listen,
            fix="listen on 127.0.0.1 and come by ssh -L, or give --token-file and --allow-plaintext behind a proxy",
        )
    asyncio.run(_serve(app, listen, on_ready))


async def _serve(app: web.Application, listen: str, on_ready: Callable[[str], None]) -> None:
    host, port = host_and_port(listen)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as wrong:
            raise cannot_listen(wrong, listen) from wrong
        shown = f"[{host}]" if ":" in host else host
        on_ready(f"http://{shown}:{runner.addresses[0][1]}{ROOT}/")
        await stopping.wait()
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
