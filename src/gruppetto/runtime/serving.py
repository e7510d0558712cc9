"""The syncer as a process: the service, its threads, its timer, its address and its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from gruppetto.errors import AddressError
from gruppetto.numerics.kernels import warm
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.durable import write_durably
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.setting import SyncerSetting, host_and_port
from gruppetto.runtime.store import cannot_write
from gruppetto.runtime.worker import ThreadWorker
from gruppetto.trace.log import TraceWriter

__all__ = ["ENDPOINT_FILE", "Endpoint", "run_syncer", "serve"]

_log = logging.getLogger("gruppetto.syncer")

ENDPOINT_FILE = "endpoint.json"
SHUTDOWN_S = 2.0
"""How long transfers under way may go on when the syncer stops."""
SHORTEST_WAIT_S = 0.001
"""A timer may fire a little early; it is not set again for less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a syncer listens. Written to endpoint.json in its state directory while it does."""

    url: str
    run_id: str
    epoch: int
    pid: int


def run_syncer(
    protocol: ProtocolSetting,
    setting: SyncerSetting,
    *,
    trace: TraceWriter | None = None,
    on_ready: Callable[[Endpoint], None] | None = None,
) -> None:
    """Serve until the run is over (if ``exit_when_finished``) or a SIGTERM or SIGINT comes. For the main thread.

    Raises :class:`AddressError`, :class:`StateError` or :class:`SettingError` for what the user can fix, and
    :class:`RunFailed` for what is our fault.
    """
    asyncio.run(serve(protocol, setting, trace=trace, on_ready=on_ready, handle_signals=True))


async def serve(
    protocol: ProtocolSetting,
    setting: SyncerSetting,
    *,
    trace: TraceWriter | None = None,
    clock: Clock | None = None,
    on_ready: Callable[[Endpoint], None] | None = None,
    stop: asyncio.Event | None = None,
    handle_signals: bool = False,
) -> None:
    """The same inside a running event loop; ``stop`` ends it. Whatever was published is durable when it returns."""
    setting.check_exposure()
    tls = _tls_context(setting)
    loop = asyncio.get_running_loop()
    time = clock if clock is not None else MonotonicClock()
    stopping = stop if stop is not None else asyncio.Event()
    diary = trace if trace is not None else TraceWriter(None, {})
    service = SyncerService(
        protocol,
        setting,
        clock=time,
        trace=diary,
        merger=ThreadWorker("gruppetto-merge", loop),
        disk=ThreadWorker("gruppetto-disk", loop),
    )
    try:
        # Compiled before anybody can be kept waiting by it.
        await loop.run_in_executor(None, warm)
        timer = _Timer(service, time, loop)
        server = HttpServer(service, token=setting.token, stall_s=protocol.liveness_s)

        def look() -> None:
            timer.set()
            server.review()
            if service.failure is not None or (service.over and setting.exit_when_finished):
                stopping.set()

        service.on_change = look
        look()
        if handle_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stopping.set)
        await _listen(service, server, setting, tls, on_ready, stopping)
        timer.stop()
    finally:
        service.close()
        diary.flush()
    if service.failure is not None:
        raise service.failure


async def _listen(
    service: SyncerService,
    server: HttpServer,
    setting: SyncerSetting,
    tls: ssl.SSLContext | None,
    on_ready: Callable[[Endpoint], None] | None,
    stopping: asyncio.Event,
) -> None:
    host, port = host_and_port(setting.listen)
    runner = web.AppRunner(
        server.app,
        access_log=None,
        handle_signals=False,
        logger=server.request_log,
        shutdown_timeout=SHUTDOWN_S,
        read_bufsize=1 << 18,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as wrong:
            raise AddressError(
                f"cannot be listened on ({wrong.strerror})", where=setting.listen, fix="use a free port, or port 0"
            ) from wrong
        chosen = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        endpoint = Endpoint(
            url=f"{'http' if tls is None else 'https'}://{shown}:{chosen}",
            run_id=service.run_id,
            epoch=service.epoch,
            pid=os.getpid(),
        )
        path = setting.state / ENDPOINT_FILE
        _write_endpoint(path, endpoint)
        _log.info("listening on %s", endpoint.url)
        if on_ready is not None:
            on_ready(endpoint)
        await stopping.wait()
        service.say_farewell()
        with suppress(OSError):
            path.unlink()
    finally:
        await runner.cleanup()


class _Timer:
    """Calls ``tick`` when the service wants it."""

    def __init__(self, service: SyncerService, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._service, self._clock, self._loop = service, clock, loop
        self._handle: asyncio.TimerHandle | None = None

    def set(self) -> None:
        self.stop()
        if self._service.wake_at is not None:
            wait_s = max(SHORTEST_WAIT_S, self._service.wake_at - self._clock.now())
            self._handle = self._loop.call_later(wait_s, self._service.tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


def _write_endpoint(path: Path, endpoint: Endpoint) -> None:
    text = json.dumps({"url": endpoint.url, "run_id": endpoint.run_id, "epoch": endpoint.epoch, "pid": endpoint.pid})
    try:
        write_durably(path, [text.encode()])
    except OSError as wrong:
        raise cannot_write(path, wrong) from wrong


def _tls_context(setting: SyncerSetting) -> ssl.SSLContext | None:
    if setting.tls_cert is None or setting.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(setting.tls_cert, setting.tls_key)
    except (OSError, ssl.SSLError) as wrong:
        raise AddressError(
            f"the certificate or its key cannot be used ({wrong})",
            where=str(setting.tls_cert),
            fix="give a PEM certificate and its unencrypted key",
        ) from wrong
    return context
