"""A shard makes itself known at the first one, for as long as it serves, and hears from it where the others are."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

import aiohttp
import msgspec

from gruppetto.errors import AddressError, ProtocolError, SettingError
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.security.fresh import client_context
from gruppetto.runtime.security.places import CA
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shard_map import (
    ANNOUNCE_S,
    DIRECTORY_PATH,
    MAX_MAP_BYTES,
    Place,
    ShardDirectory,
    ShardMap,
    decode_map,
)

__all__ = ["Announcer"]

_log = logging.getLogger("gruppetto.syncer")

ASK_S = 5.0
"""For the first shard to answer."""


class Announcer:
    """An asynchronous context manager around one connection to the first shard, at the first of its addresses at which
    one answers."""

    def __init__(self, setting: SyncerSetting, complaints: Complaints | None = None) -> None:
        self._addresses = SyncerAddress.parse_all(setting.directory)
        self._headers = {} if setting.token is None else {"Authorization": f"Bearer {setting.token}"}
        self._setting = setting
        self._complaints = Complaints(_log) if complaints is None else complaints
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Announcer:
        tls: ssl.SSLContext | bool = True
        if any(address.secure for address in self._addresses):
            tls = self._context()
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=tls),
            timeout=aiohttp.ClientTimeout(total=ASK_S),
        )
        return self

    def _context(self) -> ssl.SSLContext:
        """All shards of a run have one directory of certificates, or share one certificate and trust each other by it.

        Raises :class:`SettingError`."""
        setting = self._setting
        if setting.identities is not None:
            papers = setting.identities / "syncer.pem", setting.identities / "syncer.key"
            return client_context(setting.identities / CA, *papers)
        tls = ssl.create_default_context()
        if setting.tls_cert is not None:
            tls.load_verify_locations(setting.tls_cert)
        return tls

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def announce(self, place: Place) -> ShardMap | None:
        """Say where this shard is; where all are, or None if nobody answers now.

        Raises :class:`SettingError` if it does not belong into the run, :class:`AddressError` where no first shard can
        be behind the address.
        """
        assert self._session is not None
        for address in self._addresses:
            url = address.url(DIRECTORY_PATH)
            try:
                async with self._session.put(url, data=msgspec.json.encode(place)) as reply:
                    said = await reply.read() if (reply.content_length or 0) <= MAX_MAP_BYTES else b""
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            text = said.decode("utf-8", "replace").strip().partition("\n")[0][:1000]
            match reply.status:
                case 200:
                    return decode_map(said)
                case 409:
                    raise SettingError(text.removeprefix(f"shard {place.shard}: "), where=f"shard {place.shard}")
                case 401:
                    raise AddressError(
                        "wants other papers", where=str(address), fix="give all shards one token, or one --certs"
                    )
                case 403:
                    raise AddressError(f"refuses ({text})", where=str(address), fix="give all shards one --certs")
                case 404 | 405:
                    raise AddressError(
                        "is no first shard", where=str(address), fix="start the first shard there, with --shard 1/S"
                    )
                case _:
                    continue  # a standby, or one that starts
        return None

    async def belongs(self, place: Place, stopping: asyncio.Event) -> ShardMap | None:
        """Wait until the first shard takes this one for a shard of its run; None if it is to stop first."""
        waited = False
        while not stopping.is_set():
            told = await self.announce(place)
            if told is not None:
                return told
            if not waited:
                _log.info("shard %s waits for the first shard at %s", place.shard, ", ".join(map(str, self._addresses)))
            waited = True
            await _pause(stopping)
        return None

    async def go_on(self, directory: ShardDirectory, stopping: asyncio.Event, look: Callable[[], None]) -> None:
        """Until told to stop; what the first shard says against it meanwhile is a complaint. ``look`` is called before
        each announcement, and behind its answer. One that has finished says so behind that word once more: it may end
        with the run before it has said it at all, and the first shard waits for it."""
        last = False
        while not last:
            last = stopping.is_set()
            look()
            if last and not directory.finished:
                return
            try:
                told = await self.announce(directory.place)
                if told is not None:
                    directory.learn(told)
                    look()
            except (SettingError, AddressError, ProtocolError) as wrong:
                self._complaints.note(("directory",), str(wrong))
            await _pause(stopping)


async def _pause(stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(ANNOUNCE_S):
            await stopping.wait()
    except TimeoutError:
        pass
