"""The page, its data and its stream of news over HTTP; also /metrics. In front of a syncer's own endpoints, or alone.

=============================  =======================================================================================
``/dashboard/``                the page; every file of it lies in ``static/``
``/dashboard/events``          server-sent events: ``head`` whenever something is new
``/dashboard/data``            ``?from&to&slots``: a stretch of the run, as small as a page needs it
``/dashboard/learner``         ``?name&from&to&slots``: all that was measured of one learner
``/dashboard/export``          ``?format=csv|json&from&to``: the same, to keep
``/dashboard/enter``           the form in which a token is given
``/metrics``                   Prometheus text, at a syncer
=============================  =======================================================================================
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib import resources

import msgspec
from aiohttp import hdrs, web

from gruppetto.dashboard.book import Book
from gruppetto.dashboard.desk import Desk
from gruppetto.dashboard.door import Door
from gruppetto.dashboard.export import as_csv
from gruppetto.dashboard.window import head, lane_in_window, window
from gruppetto.runtime.security.strangers import KNOWN

__all__ = ["STATIC", "Pages"]

ROOT = "/dashboard"
METRICS = "/metrics"
MAX_LOOKERS = 64
"""Streams of news at a time."""
NEWS_EVERY_S = 0.5
SIGN_AFTER = 20
"""So many times without news a sign is given all the same: a line that is dead shows only when something is sent."""
SEND_WITHIN_S = 15.0
"""A looker that takes nothing for so long is let go."""
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _read_static() -> dict[str, bytes]:
    place = resources.files("gruppetto.dashboard") / "static"
    return {file.name: file.read_bytes() for file in place.iterdir() if file.name.rpartition(".")[2] in KINDS}


STATIC = _read_static()
"""The files of the page, by name."""


class Pages:
    """``metrics``: what /metrics says, if there is a syncer to say it."""

    def __init__(
        self,
        desk: Desk,
        *,
        token: str | None = None,
        door: Door | None = None,
        metrics: Callable[[], str] | None = None,
        shard: str = "",
        shards: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """``shard``: which of several shards the trace is of; ``shards``: the addresses of the syncers that serve the
        run beside this one, by number."""
        self._desk, self._metrics, self._shard, self._shards = desk, metrics, shard, shards
        self._door = Door(token) if door is None else door
        self._lookers = 0
        self._closing = asyncio.Event()
        self._routes: dict[str, Handler] = {
            f"{ROOT}/events": self._events,
            f"{ROOT}/data": self._data,
            f"{ROOT}/learner": self._learner,
            f"{ROOT}/export": self._export,
        }

    def join(self, app: web.Application) -> None:
        """Answer for these paths in ``app``, before anything of its own sees them."""
        app.middlewares.insert(0, self._middleware)
        app.on_shutdown.append(self._say_farewell)
        app.on_cleanup.append(self._close)

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if path in ("/", ROOT) and request.method in ("GET", "HEAD"):
            return web.Response(status=302, headers={**HEADERS, "Location": f"{ROOT}/"})
        if not (path.startswith(f"{ROOT}/") or (path == METRICS and self._metrics is not None)):
            return await handler(request)
        if path == f"{ROOT}/enter" and request.method == "POST":
            return await self._enter(request)
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={**HEADERS, "Allow": "GET, HEAD"})
        if "token" in request.query and path == f"{ROOT}/":
            return self._exchange(request, request.query["token"])
        name = path.removeprefix(f"{ROOT}/")
        if not self._door.lets_in(request):
            if not self._door.wants_a_token:
                text = "this page is open to this machine, by its address: use 127.0.0.1, or give the syncer a token\n"
                return web.Response(status=403, text=text, headers=HEADERS)
            # The form may be seen by everybody, and what makes it pretty.
            if name in ("", "style.css", "icon.svg", "enter.js"):
                return _static("enter.html" if name == "" else name, status=401 if name == "" else 200)
            return web.Response(
                status=401, text="a valid token is needed: Authorization: Bearer TOKEN\n", headers=HEADERS
            )
        if KNOWN in request.app:
            request.app[KNOWN](request)
        if path == METRICS:
            assert self._metrics is not None
            return web.Response(text=self._metrics(), headers={**HEADERS, "Content-Type": "text/plain; version=0.0.4"})
        if path in self._routes:
            return await self._routes[path](request)
        return _static(name or "index.html")

    # ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        if (request.content_length or 0) > 4096:
            return web.Response(status=413, headers=HEADERS)
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                given = await request.post()
        except TimeoutError:
            return web.Response(status=408, headers=HEADERS)
        return self._exchange(request, str(given.get("token", "")).strip())

    def _exchange(self, request: web.Request, token: str) -> web.StreamResponse:
        """A good token becomes a cookie, and leaves the address."""
        if self._door.is_token(token):
            response = web.Response(status=303, headers={**HEADERS, "Location": f"{ROOT}/"})
            self._door.let_in(request, response, token)
            return response
        if self._door.lets_in(request):
            return web.Response(status=303, headers={**HEADERS, "Location": f"{ROOT}/"})
        return _static("enter.html", status=401)

    # ── what there is to see ─────────────────────────────────────────────────────────────────────────────────────

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._lookers >= MAX_LOOKERS:
            return web.Response(status=503, text="too many are looking; close a page\n", headers=HEADERS)
        headers = {**HEADERS, "Content-Type": "text/event-stream"}
        if request.method == "HEAD":
            return web.Response(headers=headers)
        response = web.StreamResponse(headers=headers)
        self._lookers += 1
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            await self._tell(request, response)
        except (OSError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._lookers -= 1
        return response

    async def _tell(self, request: web.Request, response: web.StreamResponse) -> None:
        said, quiet = b"", 0
        while not self._closing.is_set() and self._door.lets_in(request):
            if request.transport is None or request.transport.is_closing():
                return  # gone, and nothing was written that could have said so
            reading = asyncio.ensure_future(self._desk.catch_up())
            with suppress(TimeoutError):
                # A long trace is shown as it is read.
                await asyncio.wait_for(asyncio.shield(reading), NEWS_EVERY_S)
            news = await self._desk.ask(self._head)
            quiet += 1
            if news != said or quiet >= SIGN_AFTER:
                text = b": nothing new\n\n" if news == said else b"event: head\ndata: " + news + b"\n\n"
                said, quiet = news, 0
                async with asyncio.timeout(SEND_WITHIN_S):
                    await response.write(text)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), NEWS_EVERY_S)

    def _head(self) -> bytes:
        book = self._desk.book
        news = head(book.picture, round(book.now, 1), live=book.live)
        return msgspec.json.encode(
            {
                **news,
                "version": book.version,
                "share_read": round(book.share_read, 3),
                "shard": self._shard,
                "shards": self._shards(),
            }
        )

    async def _data(self, request: web.Request) -> web.StreamResponse:
        await self._up_to_date()
        start, end, slots = self._window(request)
        return await self._json(lambda book: window(book.picture, start, book.now if end is None else end, slots=slots))

    async def _learner(self, request: web.Request) -> web.StreamResponse:
        start, end, slots = self._window(request)
        name = request.query.get("name", "")
        return await self._json(
            lambda book: lane_in_window(book.picture, name, start, book.now if end is None else end, slots=slots)
        )

    async def _export(self, request: web.Request) -> web.StreamResponse:
        await self._up_to_date()
        start, end, slots = self._window(request)
        kind = request.query.get("format", "json")
        if kind not in ("csv", "json"):
            return web.Response(status=400, text="format is csv or json\n", headers=HEADERS)
        keep = {"Content-Disposition": f'attachment; filename="gruppetto.{kind}"'}
        if kind == "csv":
            found = await self._desk.ask(lambda: as_csv(self._desk.book.picture, start, self._end(end)))
            return web.Response(text=found, headers={**HEADERS, **keep, "Content-Type": "text/csv; charset=utf-8"})
        response = await self._json(lambda book: window(book.picture, start, self._end(end), slots=slots))
        response.headers.update(keep)
        return response

    def _end(self, end: float | None) -> float:
        return self._desk.book.now if end is None else end

    async def _up_to_date(self) -> None:
        """As far as that is quick: a page that has just been opened shows what has been read so far."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(self._desk.catch_up())), NEWS_EVERY_S)

    async def _json(self, look: Callable[[Book], object]) -> web.Response:
        found = await self._desk.ask(partial(look, self._desk.book))
        if found is None:
            return web.Response(status=404, text="there is no such learner\n", headers=HEADERS)
        body = await self._desk.ask(lambda: msgspec.json.encode(found))
        response = web.Response(body=body, headers={**HEADERS, "Content-Type": "application/json"})
        response.enable_compression()
        return response

    @staticmethod
    def _window(request: web.Request) -> tuple[float, float | None, int]:
        def number(name: str) -> float | None:
            try:
                value = float(request.query[name])
            except (KeyError, ValueError):
                return None
            return value if math.isfinite(value) and 0 <= value < 1e9 else None

        return number("from") or 0.0, number("to"), int(number("slots") or 300)

    async def _say_farewell(self, app: web.Application) -> None:
        self._closing.set()

    async def _close(self, app: web.Application) -> None:
        self._desk.close()


def _static(name: str, status: int = 200) -> web.Response:
    content = STATIC.get(name)
    if content is None:
        return web.Response(status=404, text="there is nothing here\n", headers=HEADERS)
    kind = f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
    return web.Response(body=content, status=status, headers={**HEADERS, hdrs.CONTENT_TYPE: kind})
