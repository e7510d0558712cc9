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
    process = _Process(
        protocol,
        setting,
        clock=clock if clock is not None else MonotonicClock(),
        stopping=stop if stop is not None else asyncio.Event(),
    )
    if handle_signals:
        process.heed_signals()
    diary = trace if trace is not None else TraceWriter(None, {})
    if await process.finds_its_run():
        service = await process.begin(diary) if standby is None else await process.stand_by(standby)
        if service is not None:
            try:
                await process.run(service, on_ready, annex)
            finally:
                diary.flush()
    return process.heard


class _Process:
    """What the stages of a syncer's process share. ``setting`` is filled in as it is found out."""

    def __init__(
        self, protocol: ProtocolSetting, setting: SyncerSetting, *, clock: Clock, stopping: asyncio.Event
    ) -> None:
        setting.check_exposure()
        self.protocol, self.setting = protocol, setting
        self.clock, self.stopping = clock, stopping
        self.porter = None if setting.identities is None else Porter(setting.identities)
        self.tls = _tls_context(setting)
        self.memory = SharedMemory() if setting.shares_memory else None
        self.heard: signal.Signals | None = None
        """The first signal that said to stop."""
        self._loop = asyncio.get_running_loop()

    def heed_signals(self) -> None:
        def hear(number: signal.Signals) -> None:
            self.heard = self.heard or number
            self.stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, hear, number)

    async def finds_its_run(self) -> bool:
        """A shard that is new asks the first one which run it belongs to. False if we are to stop before it says."""
        setting = self.setting
        if not setting.directory or setting.run_id or holds_commits(setting.state):
            return True
        async with Announcer(setting) as announcer:
            asks = Place(shard=str(setting.shard), plan=plan_of(self.protocol, setting))
            told = await announcer.belongs(asks, self.stopping)
        if told is not None:
            self.setting = replace(setting, run_id=told.run_id)
        return told is not None

    async def begin(self, diary: TraceWriter) -> SyncerService:
        """Claim the state at once."""
        await check_address(self.setting)
        return self._make_service(diary, None)

    async def stand_by(self, opens: Callable[[Takeover], TraceWriter]) -> SyncerService | None:
        """Wait until nobody else serves the state, and be the next; None if we are to stop first."""
        await self._warm()
        setting = self.setting
        host, port = host_and_port(setting.listen)
        async with Antechamber(host, port, self.tls, serving=partial(who_serves, setting.state)) as chosen:
            self.setting = replace(setting, listen=f"[{host}]:{chosen}" if ":" in host else f"{host}:{chosen}")
            waiting = Standby(setting.state, clock=self.clock, lease_s=setting.lease_s)
            while (takeover := await waiting.wait(self.stopping)) is not None:
                try:
                    service = self._make_service(opens(takeover), takeover)
                except StoreInUse:
                    waiting.begin_again()
                    continue
                _log.warning("%s; this one takes over, in epoch %d", takeover.why, service.epoch)
                return service
        return None

    async def run(
        self, service: SyncerService, on_ready: Callable[[Endpoint], None] | None, annex: Annex | None
    ) -> None:
        """Serve until the end. Raises what the service has failed of."""
        upkeep = [
            asyncio.create_task(renew_lease(service, self.setting.lease_s / BEATS_A_LEASE)),
            asyncio.create_task(look_around(service)),
        ]
        try:
            # Compiled before anybody can be kept waiting by it.
            said = self._loop.call_later(
                LONG_S, _log.info, "making ready to merge: the first time on a machine takes a while"
            )
            await self._warm()
            said.cancel()
            timer = Timer(service, self.clock, self._loop)
            control = secrets.token_hex(16)
            patience_s = min(PATIENCE_S, max(1.0, self.protocol.liveness_s))
            strangers = Strangers(now=self._loop.time, patience_s=patience_s)
            server = self._make_server(service, strangers, control)
            if annex is not None:
                annex(server.app, service, self.porter)
            server.watch = self._watch(service, strangers)
            upkeep.append(asyncio.create_task(server.watch.run()))
            stopped = asyncio.Event()

            def look() -> None:
                timer.set()
                if service.stopped:
                    stopped.set()
                server.review()
                if service.failure is not None or (service.over and self.setting.exit_when_finished):
                    self.stopping.set()

            service.on_change = look
            look()
            async with through_the_mailbox(service, server, self.setting, self.clock, self.stopping) as serves:
                if serves:
                    await at_its_address(
                        service, server, strangers, self.setting, self.tls, on_ready, self.stopping, control, stopped
                    )
            timer.stop()
        finally:
            for task in upkeep:
                task.cancel()
            await asyncio.gather(*upkeep, return_exceptions=True)
            service.close()
        if service.failure is not None:
            raise service.failure

    def _make_service(self, diary: TraceWriter, takeover: Takeover | None) -> SyncerService:
        return SyncerService(
            self.protocol,
            self.setting,
            clock=self.clock,
            trace=diary,
            merger=ThreadWorker("gruppetto-merge", self._loop),
            disk=ThreadWorker("gruppetto-disk", self._loop),
            over=takeover is not None and takeover.over,
            known=None if takeover is None else takeover.known,
            memory=self.memory,
        )

    def _make_server(self, service: SyncerService, strangers: Strangers, control: str) -> HttpServer:
        setting = self.setting
        server = HttpServer(
            service,
            token=setting.token,
            control=control,
            stall_s=self.protocol.liveness_s,
            porter=self.porter,
            strangers=strangers,
            memory=self.memory,
        )
        if setting.max_bytes_per_s is not None:
            server.bodies.pace = Bucket(setting.max_bytes_per_s)
        return server

    def _watch(self, service: SyncerService, strangers: Strangers) -> Watch:
        return Watch(
            porter=self.porter,
            strangers=strangers,
            files=_certificates(self.setting),
            warn=lambda text: service.warn(AlarmKind.EXPIRY, text),
        )

    async def _warm(self) -> None:
        """Compile the kernels for all encodings that may be met."""
        codecs = {*CASTS, self.setting.uplink, *DOWNLINKS[self.setting.downlink].codecs}
        await self._loop.run_in_executor(None, warm, codecs)


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


def _certificates(setting: SyncerSetting) -> dict[str, Path]:
    """What may expire, by what it is for."""
    found = {} if setting.certificate is None else {"this syncer": setting.certificate[0]}
    return found if setting.identities is None else {**found, "the authority": setting.identities / CA}
