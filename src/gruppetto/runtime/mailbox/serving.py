"""A syncer's process at its mailbox: claimed before it serves, given back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gruppetto.errors import SettingError
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.setting import SyncerSetting

__all__ = ["through_the_mailbox"]

REQUESTS_A_STALL = 3.0
"""A request to an object store may take this part of the time after which a silent learner is dead."""


@asynccontextmanager
async def through_the_mailbox(
    service: SyncerService, server: HttpServer, setting: SyncerSetting, clock: Clock, stopping: asyncio.Event
) -> AsyncIterator[bool]:
    """Serve through the mailbox as well, where there is one; False if we are to stop before it is ours."""
    if not setting.mailbox:
        yield True
        return
    from gruppetto.runtime.mailbox.bucket import open_bucket  # takes a library that few need
    from gruppetto.runtime.mailbox.server import LOOKS_A_STALL, MailServer

    address, rarest_s = MailboxAddress.parse(setting.mailbox), server.stall_s / LOOKS_A_STALL
    if address.poll_s > rarest_s:
        raise SettingError(
            f"poll is {address.poll_s:g} s, and a learner is dead after {server.stall_s:g} s without a word",
            where="syncer.mailbox",
            fix=f"use poll={rarest_s:g} or less, or raise run.liveness_s",
        )
    mail = MailServer(
        open_bucket(address, limit_s=server.stall_s / REQUESTS_A_STALL),
        service,
        server.desk,
        poll_s=address.poll_s,
        stall_s=server.stall_s,
        lease_s=setting.lease_s,
        clock=clock,
    )
    if not await mail.claim(stopping):
        yield False
        return
    running = asyncio.create_task(mail.run())
    running.add_done_callback(lambda _: stopping.set())
    try:
        yield True
    finally:
        await mail.close()
        if not running.done():
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running
