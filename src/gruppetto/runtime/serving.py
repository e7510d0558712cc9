"""The syncer as a process: the service with its threads, from the claim on the state directory to the end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from aiohttp import web

from gruppetto.errors import AddressError, SettingError
from gruppetto.numerics.codec import CASTS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.kernels import warm
from gruppetto.protocol.actions import AlarmKind
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.address_book import ENDPOINT_FILE
from gruppetto.runtime.announcing import Announcer
from gruppetto.runtime.antechamber import Antechamber, who_serves
from gruppetto.runtime.at_its_address import at_its_address, check_address
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.endpoint import Endpoint
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.mailbox.serving import through_the_mailbox
from gruppetto.runtime.many_files import MANY_FILES, allow_many_files
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.security.fresh import server_context
from gruppetto.runtime.security.places import CA
from gruppetto.runtime.security.porter import Porter
from gruppetto.runtime.security.strangers import PATIENCE_S, Strangers
from gruppetto.runtime.security.watch import Watch
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.setting import SyncerSetting, host_and_port
from gruppetto.runtime.shard_map import Place, plan_of
from gruppetto.runtime.shared_memory import SharedMemory
from gruppetto.runtime.standby import Standby, Takeover
from gruppetto.runtime.store import StoreInUse, holds_commits
from gruppetto.runtime.upkeep import Timer, look_around, renew_lease
from gruppetto.runtime.worker import ThreadWorker
from gruppetto.trace.log import TraceWriter

__all__ = ["ENDPOINT_FILE", "MANY_FILES", "Endpoint", "allow_many_files", "run_syncer", "serve"]

_log = logging.getLogger("gruppetto.syncer")

BEATS_A_LEASE = 4
LONG_S = 2.0
"""A start that takes longer is explained."""
Annex = Callable[[web.Application, SyncerService, Porter | None], None]


def run_syncer(
    protocol: ProtocolSetting,
    setting: SyncerSetting,
    *,
    trace: TraceWriter | None = None,
    on_ready: Callable[[Endpoint], None] | None = None,
    standby: Callable[[Takeover], TraceWriter] | None = None,
    annex: Annex | None = None,
) -> signal.Signals | None:
    """Serve until the run is over (if ``exit_when_finished``) or a SIGTERM or SIGINT comes. For the main thread.

    With ``standby`` it waits until another syncer on the same state is gone, and only then opens that trace. ``annex``
    may let the application answer for more than learners ask for. Returns the signal that stopped it, if one has.

    Raises :class:`AddressError`, :class:`StateError` or :class:`SettingError` for what the user can fix,
    :class:`SteppedDown` when another syncer has taken over from it, and :class:`RunFailed` for what is our fault.
    """
    allow_many_files()
    return asyncio.run(
        serve(protocol, setting, trace=trace, on_ready=on_ready, handle_signals=True, standby=standby, annex=annex)
    )


async def serve(
    protocol: ProtocolSetting,
    setting: SyncerSetting,
    *,
    trace: TraceWriter | None = None,
    clock: Clock | None = None,
    on_ready: Callable[[Endpoint], None] | None = None,
    stop: asyncio.Event | None = None,
    handle_signals: bool = False,
    standby: Callable[[Takeover], TraceWriter] | None = None,
    annex: Annex | None = None,
) -> signal.Signals | None:
    """The same inside a running event loop; ``stop`` ends it. Whatever was published is durable when it returns."""
    setting.check_exposure()
    porter = None if setting.identities is None else Porter(setting.identities)
    tls = _tls_context(setting)
    loop = asyncio.get_running_loop()
    time = clock if clock is not None else MonotonicClock()
    stopping = stop if stop is not None else asyncio.Event()
    memory = SharedMemory() if setting.shares_memory else None
    heard: list[signal.Signals] = []

    def hear(number: signal.Signals) -> None:
        heard.append(number)
        stopping.set()

    if handle_signals:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, hear, number)

    def make(diary: TraceWriter, takeover: Takeover | None) -> SyncerService:
        return SyncerService(
            protocol,
            setting,
            clock=time,
            trace=diary,
            merger=ThreadWorker("gruppetto-merge", loop),
            disk=ThreadWorker("gruppetto-disk", loop),
            over=takeover is not None and takeover.over,
            known=None if takeover is None else takeover.known,
            memory=memory,
        )

    if setting.directory and not (setting.run_id or holds_commits(setting.state)):
        async with Announcer(setting) as announcer:
            asks = Place(shard=str(setting.shard), plan=plan_of(protocol, setting))
            told = await announcer.belongs(asks, stopping)
        if told is None:
            return heard[0] if heard else None
        setting = replace(setting, run_id=told.run_id)
    diary = trace if trace is not None else TraceWriter(None, {})
    if standby is None:
        await check_address(setting)
        service = make(diary, None)
    else:
        await loop.run_in_executor(None, warm, _codecs(setting))
        host, port = host_and_port(setting.listen)
        async with Antechamber(host, port, tls, serving=partial(who_serves, setting.state)) as chosen:
            setting = replace(setting, listen=f"[{host}]:{chosen}" if ":" in host else f"{host}:{chosen}")
            waiting = Standby(setting.state, clock=time, lease_s=setting.lease_s)
            taken = await _take_over(waiting, lambda takeover: make(standby(takeover), takeover), stopping)
        if taken is None:
            return heard[0] if heard else None
        service = taken
    watching: asyncio.Task[None] | None = None
    renewal = asyncio.create_task(renew_lease(service, setting.lease_s / BEATS_A_LEASE))
    lookout = asyncio.create_task(look_around(service))
    try:
        # Compiled before anybody can be kept waiting by it.
        said = loop.call_later(LONG_S, _log.info, "making ready to merge: the first time on a machine takes a while")
        await loop.run_in_executor(None, warm, _codecs(setting))
        said.cancel()
        timer = Timer(service, time, loop)
        control = secrets.token_hex(16)
        strangers = Strangers(now=loop.time, patience_s=min(PATIENCE_S, max(1.0, protocol.liveness_s)))
        server = HttpServer(
            service,
            token=setting.token,
            control=control,
            stall_s=protocol.liveness_s,
            porter=porter,
            strangers=strangers,
            memory=memory,
        )
        if setting.max_bytes_per_s is not None:
            server.bodies.pace = Bucket(setting.max_bytes_per_s)
        if annex is not None:
            annex(server.app, service, porter)
        server.watch = Watch(
            porter=porter,
            strangers=strangers,
            files=_certificates(setting),
            warn=lambda text: service.warn(AlarmKind.EXPIRY, text),
        )
        watching = asyncio.create_task(server.watch.run())

        stopped = asyncio.Event()

        def look() -> None:
            timer.set()
            if service.stopped:
                stopped.set()
            server.review()
            if service.failure is not None or (service.over and setting.exit_when_finished):
                stopping.set()

        service.on_change = look
        look()
        async with through_the_mailbox(service, server, setting, time, stopping) as serves:
            if serves:
                await at_its_address(service, server, strangers, setting, tls, on_ready, stopping, control, stopped)
        timer.stop()
    finally:
        renewal.cancel()
        lookout.cancel()
        if watching is not None:
            watching.cancel()
        await asyncio.gather(*filter(None, (renewal, lookout, watching)), return_exceptions=True)
        service.close()
        diary.flush()
    if service.failure is not None:
        raise service.failure
    return heard[0] if heard else None


async def _take_over(
    standby: Standby, make: Callable[[Takeover], SyncerService], stopping: asyncio.Event
) -> SyncerService | None:
    """Wait, and be the next; None if we are to stop first."""
    while (takeover := await standby.wait(stopping)) is not None:
        try:
            service = make(takeover)
        except StoreInUse:
            standby.begin_again()
            continue
        _log.warning("%s; this one takes over, in epoch %d", takeover.why, service.epoch)
        return service
    return None


def _tls_context(setting: SyncerSetting) -> ssl.SSLContext | None:
    if setting.certificate is None:
        return None
    clients = None if setting.identities is None else setting.identities / CA
    try:
        return server_context(*setting.certificate, clients=clients, says=Complaints(_log))
    except SettingError as wrong:
        raise AddressError(
            f"the certificate or its key {wrong.what}",
            where=wrong.where,
            fix="give a PEM certificate and its unencrypted key, or say gruppetto certs make",
        ) from wrong


def _codecs(setting: SyncerSetting) -> set[str]:
    """All that may be met."""
    return {*CASTS, setting.uplink, *DOWNLINKS[setting.downlink].codecs}


def _certificates(setting: SyncerSetting) -> dict[str, Path]:
    """What may expire, by what it is for."""
    found = {} if setting.certificate is None else {"this syncer": setting.certificate[0]}
    return found if setting.identities is None else {**found, "the authority": setting.identities / CA}
