"""A learner gives its state away: a small server in the learner's own event loop.

============================================  ====================================================================
``GET /v1/donation?versions=7,7,6``           the manifest of a cut in which every fragment is that new; or 503
``GET /v1/donation/{cut}`` with ``Range``     206: these bytes of it, :data:`DIGEST_HEADER` their digest
``DELETE /v1/donation/{cut}``                 thank you
============================================  ====================================================================

A cut is made on demand, at the next step boundary at which the learner is new enough, and serves everybody to whom it
is new enough. At most :data:`MAX_GUESTS` learners are served at a time; others hear 503 and go to another donor.
Without guests nothing is kept.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from gruppetto.errors import GruppettoError
from gruppetto.protocol.donors import covers
from gruppetto.protocol.units import Version
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.donation import Cut, digest_of, donation_secret, encode_manifest
from gruppetto.runtime.headers import LEARNER_HEADER
from gruppetto.runtime.http_log import request_log
from gruppetto.runtime.listening import cannot_listen
from gruppetto.runtime.pacing import Bucket, in_turn, set_up
from gruppetto.runtime.plausible import MAX_ITEMS, is_name
from gruppetto.runtime.security.identity import Identity, Role, identity_in, serial_in

__all__ = ["BUSY_HEADER", "DIGEST_HEADER", "DonationServer", "Standing"]

_log = logging.getLogger("gruppetto.learner")

DIGEST_HEADER = "Gruppetto-Digest"
BUSY_HEADER = "Gruppetto-Busy"
"""With a 503 that will pass: others are being served."""
MAX_GUESTS = 2
"""More at a time would make each of them wait, and the donor slow."""
GUEST_S = 15.0
"""Without a byte for so long a guest is forgotten."""
SHORTEST_PATIENCE_S, STEPS_OF_PATIENCE = 2.0, 4.0
"""How long a guest is kept waiting for a cut: some steps of the donor, and a while at least."""
WRITE_BYTES = 1 << 18
"""A stall is noticed between two of these."""
MAX_LINE_BYTES = 1 << 16
"""A request line with the versions of 4096 fragments."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Standing(Protocol):
    """What a donor's core says of itself."""

    @property
    def linked(self) -> bool: ...
    @property
    def step_s(self) -> float: ...
    @property
    def held(self) -> tuple[Version, ...]: ...


class DonationServer:
    """Serves cuts at ``host``:``port``. The training thread asks :meth:`wants_cut`, and answers with :meth:`give`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str | None,
        stall_s: float,
        core: Standing,
        tls: ssl.SSLContext | None = None,
        counts: Callable[[str], Awaitable[bool]] | None = None,
        pace: Bucket | None = None,
    ) -> None:
        """``tls``: asks every guest for a certificate; then it is that learner's alone that counts, and no token.
        ``counts``: asks the syncer whether a certificate of that serial number is not revoked. ``pace``: what all that
        is given is held to, together with whatever else the bucket is for."""
        self.given_bytes = 0
        self._pace = pace
        self.on_idle: Callable[[], None] = _nobody_cares
        """Called when the last guest has gone and nothing is kept any more."""
        self._destitute = False
        """It has turned out that there is nothing to give."""
        self._host, self._port, self._stall_s, self._core = host, port, stall_s, core
        self._tls, self._counts = tls, counts
        secret = donation_secret(token)
        self._expected = None if secret is None else f"Bearer {secret}".encode()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: web.AppRunner | None = None
        self._news = asyncio.Event()
        self._wanted: dict[str, tuple[Version, ...]] = {}
        """What those guests need who wait for a cut."""
        self._waiting: tuple[tuple[Version, ...], ...] = ()
        """The same, to be read from any thread."""
        self._cuts: dict[str, tuple[Cut, set[str]]] = {}
        """By name, the newest last, with their guests."""
        self._readers: dict[str, int] = {}
        self._guests: dict[str, float] = {}
        """When each was last heard of."""
        self._sweeper: asyncio.TimerHandle | None = None

    # ── from the learner ─────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> str:
        """Listen; returns the address for the others. Raises :class:`AddressError`."""
        self._loop = asyncio.get_running_loop()
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/v1/donation", self._manifest),
                web.get(r"/v1/donation/{cut:[0-9a-f]{1,32}}", self._bytes),
                web.delete(r"/v1/donation/{cut:[0-9a-f]{1,32}}", self._thanks),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=0.5,
            logger=request_log(_log, Complaints(_log)),
            max_line_size=MAX_LINE_BYTES,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        except OSError as wrong:
            await self.close()
            where = f"{self._host}:{self._port}"
            raise cannot_listen(wrong, where) from wrong
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"{shown}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        self._guests.clear()
        self._forget()
        self._loop = None

    def wants_cut(self) -> bool:
        """Somebody waits for a cut at versions that this learner has reached. For the training thread."""
        waiting = self._waiting
        return bool(waiting) and any(covers(self._core.held, wanted) for wanted in waiting)

    def give(self, cut: Cut | None) -> None:
        """A cut, from the training thread; None if this learner has found out that it has nothing to give."""
        loop = self._loop
        self._waiting = ()
        try:
            if loop is None:
                raise RuntimeError("closed")
            loop.call_soon_threadsafe(self._take, cut)
        except RuntimeError:  # the loop has just ended
            if cut is not None:
                cut.release()

    def _take(self, cut: Cut | None) -> None:
        if cut is not None and self._loop is not None:
            self._cuts[cut.manifest.cut] = (cut, set())
            if not self._guests:  # it has come too late
                self._forget()
        elif cut is not None:
            cut.release()
        self._destitute = cut is None
        self._news.set()
        self._news.clear()

    # ── from other learners ──────────────────────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._tls is not None:
            certificate = request.get_extra_info("peercert") or {}
            guest = Identity(role=Role.LEARNER, name=request.headers.get(LEARNER_HEADER, "").partition(":")[0])
            if identity_in(certificate) != guest:
                return web.Response(status=403, text="a learner asks in its own name alone\n")
        elif self._expected is not None:
            shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(shown, self._expected):
                return web.Response(status=401, text="only learners of the same run are served\n")
        return await handler(request)

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        guest, wanted = self._guest_of(request), _versions_of(request)
        if wanted is None or not guest:
            return web.Response(status=400, text="say who asks, and for which versions\n")
        self._sweep()
        if guest not in self._guests and len(self._guests) >= MAX_GUESTS:
            text = f"{len(self._guests)} learners are being served; come again\n"
            return web.Response(status=503, headers={BUSY_HEADER: "1"}, text=text)
        if (refusal := await self._refusal(request)) is not None:
            return refusal
        self._heard(guest)
        cut = await self._cut_for(guest, wanted)
        if cut is None:
            self._dismiss(guest)
            return web.Response(status=503, text="this learner is behind, or has nothing to give\n")
        _log.info("gives its state to %s", guest.rpartition(":")[0])
        for _, guests in self._cuts.values():
            guests.discard(guest)
        self._cuts[cut.manifest.cut][1].add(guest)
        self._heard(guest)
        return web.Response(body=encode_manifest(cut.manifest), content_type="application/msgpack")

    async def _refusal(self, request: web.Request) -> web.Response | None:
        """Who is revoked the syncer knows alone; a guest after whom it cannot be asked gets nothing."""
        if self._counts is None:
            return None
        try:
            if await self._counts(serial_in(request.get_extra_info("peercert") or {})):
                return None
        except GruppettoError as wrong:
            return web.Response(status=503, text=f"the syncer cannot be asked after this guest: {wrong}\n")
        return web.Response(status=403, text="this certificate counts no more\n")

    async def _cut_for(self, guest: str, wanted: tuple[Version, ...]) -> Cut | None:
        """One that is at hand, or a new one from the next boundary that is new enough; None if there will be none."""
        loop = asyncio.get_running_loop()
        patience_s = min(self._stall_s / 2, max(SHORTEST_PATIENCE_S, STEPS_OF_PATIENCE * self._core.step_s))
        until = loop.time() + patience_s
        self._wanted[guest] = wanted
        try:
            while True:
                found = next((cut for cut, _ in self._cuts.values() if covers(cut.manifest.versions, wanted)), None)
                if found is not None or self._destitute:
                    return found
                if not self._core.linked and not covers(self._core.held, wanted):
                    return None  # nothing new will come
                self._waiting = tuple(self._wanted.values())
                async with asyncio.timeout_at(until):
                    await self._news.wait()
                self._heard(guest)
        except TimeoutError:
            return None
        finally:
            self._wanted.pop(guest, None)
            self._waiting = tuple(self._wanted.values()) if self._waiting else ()

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        guest = self._guest_of(request)
        cut = self._cut_of(guest, request.match_info["cut"])
        if cut is None:
            return web.Response(status=404, text="this cut is not kept any more; ask for another\n")
        total = cut.manifest.total_bytes
        span = _range_of(request, total)
        if span is None or span[1] - span[0] > cut.manifest.chunk_bytes:
            text = f"ask for at most {cut.manifest.chunk_bytes} bytes by Range\n"
            return web.Response(status=416, headers={"Content-Range": f"bytes */{total}"}, text=text)
        loop, name = asyncio.get_running_loop(), cut.manifest.cut
        self._readers[name] = self._readers.get(name, 0) + 1
        try:
            body, digest = await loop.run_in_executor(None, _read, cut, *span)
        finally:
            self._readers[name] -= 1
            self._was_read(name)
        headers = {DIGEST_HEADER: digest, "Content-Range": f"bytes {span[0]}-{span[1] - 1}/{total}"}
        response = web.StreamResponse(status=206, headers=headers)
        response.content_type, response.content_length = "application/octet-stream", len(body)
        if request.transport is not None:
            set_up(request.transport.get_extra_info("socket"))
        try:
            await response.prepare(request)
            async for chunk in in_turn(body, self._pace, most_bytes=WRITE_BYTES):
                self._heard(guest)
                async with asyncio.timeout(self._stall_s):
                    await response.write(chunk)
                self.given_bytes += chunk.nbytes
        except (OSError, TimeoutError):  # the guest has gone, or stands still
            if request.transport is not None:
                request.transport.abort()
        self._heard(guest)
        return response

    def _cut_of(self, guest: str, name: str) -> Cut | None:
        """The cut of this name, if it is kept for that guest."""
        known = self._cuts.get(name)
        return known[0] if known is not None and guest in known[1] else None

    def _was_read(self, name: str) -> None:
        """One reader of it fewer: its guest may have gone meanwhile."""
        if not self._readers.get(name):
            self._forget()

    async def _thanks(self, request: web.Request) -> web.StreamResponse:
        self._dismiss(self._guest_of(request))
        return web.Response(status=204)

    # ── guests ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _guest_of(self, request: web.Request) -> str:
        """Name and process of whoever asks; "" if it does not say."""
        learner, _, session = request.headers.get(LEARNER_HEADER, "").partition(":")
        return f"{learner}:{session}" if is_name(learner) and is_name(session) else ""

    def _heard(self, guest: str) -> None:
        loop = asyncio.get_running_loop()
        self._guests[guest] = loop.time()
        if self._sweeper is None:
            self._sweeper = loop.call_later(GUEST_S, self._sweep_again)

    def _dismiss(self, guest: str) -> None:
        self._guests.pop(guest, None)
        for _, guests in self._cuts.values():
            guests.discard(guest)
        self._forget()

    def _sweep_again(self) -> None:
        self._sweeper = None
        self._sweep()
        if self._guests and self._loop is not None:
            self._sweeper = self._loop.call_later(GUEST_S, self._sweep_again)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for guest in [guest for guest, heard in self._guests.items() if now >= heard + GUEST_S]:
            self._dismiss(guest)
        self._forget()

    def _forget(self) -> None:
        """Keep no cut without guests, but for the newest one while there are any: it may serve the next."""
        newest = next(reversed(self._cuts), "") if self._guests else ""
        for name, (cut, guests) in list(self._cuts.items()):
            if not guests and name != newest and not self._readers.get(name):
                del self._cuts[name]
                self._readers.pop(name, None)
                cut.release()
        if not (self._cuts or self._guests):
            self.on_idle()


def _nobody_cares() -> None:
    pass


def _read(cut: Cut, start: int, stop: int) -> tuple[bytes, str]:
    cut.ready()
    body = cut.read(start, stop)
    return body, digest_of(body)


def _versions_of(request: web.Request) -> tuple[Version, ...] | None:
    texts = request.query.get("versions", "").split(",")
    if len(texts) > MAX_ITEMS or not all(t.isascii() and t.isdigit() and len(t) <= 16 for t in texts):
        return None
    return tuple(Version(int(text)) for text in texts)


def _range_of(request: web.Request, total: int) -> tuple[int, int] | None:
    """The one range of bytes that is asked for, if it is one."""
    try:
        asked = request.http_range
    except ValueError:
        return None
    start, stop = asked.start, asked.stop
    if start is None or stop is None or not 0 <= start < stop <= total:
        return None
    return start, stop
