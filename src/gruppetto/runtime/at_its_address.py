"""A syncer at its address: from the first connection that it takes to its last commit."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable

from aiohttp import web

from gruppetto.errors import AddressError
from gruppetto.runtime.announcing import Announcer
from gruppetto.runtime.authority import is_lived_in
from gruppetto.runtime.endpoint import Endpoint, forget_endpoint, write_endpoint
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.listening import cannot_listen, try_listening
from gruppetto.runtime.security.strangers import Strangers, WatchedSite
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.setting import SyncerSetting, host_and_port
from gruppetto.runtime.shard_map import FRESH_S
from gruppetto.runtime.store_errors import in_use

__all__ = ["at_its_address", "check_address"]

_log = logging.getLogger("gruppetto.syncer")

LAST_COMMIT_S = 10.0
"""How long the last commit is tried when the syncer stops."""
SHUTDOWN_S = 2.0
"""How long transfers under way may go on when the syncer stops."""
MAX_HEADER_BYTES = 1 << 16
"""Of one header: the runs that a rank holds of a fragment may be many."""
LEAST_IDLE_S, LIVES_OF_IDLENESS = 75.0, 4.0
"""A connection on which nothing is asked for so long, in seconds and in liveness periods, is closed."""


async def check_address(setting: SyncerSetting) -> None:
    """Before anything is claimed: an address that cannot be had costs the run no life.

    Raises :class:`AddressError`; for a syncer that is started twice :class:`StateError`, which says more.
    """
    try:
        await try_listening(*host_and_port(setting.listen), setting.listen)
    except AddressError:
        if is_lived_in(setting.state):
            raise in_use(setting.state) from None
        raise


async def at_its_address(
    service: SyncerService,
    server: HttpServer,
    strangers: Strangers,
    setting: SyncerSetting,
    tls: ssl.SSLContext | None,
    on_ready: Callable[[Endpoint], None] | None,
    stopping: asyncio.Event,
    control: str,
    stopped: asyncio.Event,
) -> None:
    """Listen, and say where in ``endpoint.json``; serve until ``stopping``; say farewell and make the last commit.

    ``stopped`` is set when nothing is left to be made durable. Raises :class:`AddressError` where it cannot listen.
    """
    host, port = host_and_port(setting.listen)
    runner = web.AppRunner(
        server.app,
        access_log=None,
        handle_signals=False,
        logger=server.request_log,
        shutdown_timeout=SHUTDOWN_S,
        read_bufsize=1 << 18,
        max_field_size=MAX_HEADER_BYTES,
        keepalive_timeout=max(LEAST_IDLE_S, LIVES_OF_IDLENESS * server.stall_s),
        auto_decompress=False,
    )
    await runner.setup()
    try:
        site = WatchedSite(runner, host, port, strangers=strangers, ssl_context=tls)
        try:
            await site.start()
        except OSError as wrong:
            raise cannot_listen(wrong, setting.listen) from wrong
        chosen = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        endpoint = Endpoint(
            url=f"{'http' if tls is None else 'https'}://{shown}:{chosen}",
            run_id=service.run_id,
            epoch=service.epoch,
            pid=os.getpid(),
            control=control,
        )
        write_endpoint(setting.state, endpoint)
        service.directory.url = endpoint.url
        _log.info("listening on %s", endpoint.url)
        if on_ready is not None:
            on_ready(endpoint)
        await _serve_until_told(service, setting, stopping)
        service.say_farewell()
        server.hang_up()
        await _make_last_commit(service, stopped)
        forget_endpoint(setting.state, endpoint)
    finally:
        await runner.cleanup()


async def _serve_until_told(service: SyncerService, setting: SyncerSetting, stopping: asyncio.Event) -> None:
    """A shard that is not the first is announced there meanwhile."""
    if setting.directory:
        async with Announcer(setting, service.complaints) as announcer:
            await announcer.go_on(service.directory, stopping, service.look_at_shards)
    await stopping.wait()
    leads = not (setting.shard.is_whole or setting.directory)
    if leads and setting.exit_when_finished and service.over and service.failure is None:
        await asyncio.sleep(FRESH_S)  # the others ask here whether all have finished


async def _make_last_commit(service: SyncerService, stopped: asyncio.Event) -> None:
    """Learners know by now that the syncer stops; a disk that takes no commit is given some time."""
    stopped.clear()
    service.stop()
    if service.stopped:
        return
    try:
        async with asyncio.timeout(LAST_COMMIT_S):
            await stopped.wait()
    except TimeoutError:
        _log.warning("the last commit could not be made in %g s; the one before it counts", LAST_COMMIT_S)
