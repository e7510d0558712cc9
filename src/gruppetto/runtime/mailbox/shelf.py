"""Published fragments where learners find them: one object each, which the next version replaces all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.desk import Desk, NotHere
from gruppetto.runtime.headers import CHECKSUM_HEADER, CODEC_HEADER, LAYOUT_HEADER, VERSION_HEADER
from gruppetto.runtime.mailbox.bucket import Bucket
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.label import Label, fragment_name, write_label
from gruppetto.runtime.service import SyncerService

__all__ = ["Shelf"]

AT_A_TIME = 4
"""Fragments on their way to the store. Of each there is a copy meanwhile."""


class Shelf:
    """The fragments of one term, kept up to date by whoever is about to tell learners of them."""

    def __init__(self, bucket: Bucket, service: SyncerService, desk: Desk, endurance: Endurance, *, term: int) -> None:
        self._bucket, self._service, self._desk, self._endurance, self._term = bucket, service, desk, endurance, term
        self._there: dict[Fragment, Version] = {}
        self._lock = asyncio.Lock()

    async def catch_up(self) -> None:
        """All that is published now is there when this returns, or something newer."""
        async with self._lock:
            engine = self._service.engine
            if engine is None or not engine.parameters.seeded:
                return
            behind = [p for p in map(Fragment, range(len(engine.parameters.parts.fragments))) if self._is_behind(p)]
            room = asyncio.Semaphore(AT_A_TIME)
            async with asyncio.TaskGroup() as group:
                for fragment in behind:
                    group.create_task(self._lay(fragment, room))

    def _is_behind(self, fragment: Fragment) -> bool:
        value = self._service.borrow(fragment)
        if value is None:
            return False
        try:
            return self._there.get(fragment, Version(-1)) < value.version
        finally:
            self._service.give_back(value)

    async def _lay(self, fragment: Fragment, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                with self._desk.fragment(fragment, "0", {}) as found:
                    said, version = found.headers, Version(int(found.headers[VERSION_HEADER]))
                    label = Label(
                        version=version,
                        codec=said[CODEC_HEADER],
                        layout=said[LAYOUT_HEADER],
                        checksum=said[CHECKSUM_HEADER],
                        length=found.length,
                    )
                    body = b"".join([write_label(label), *found.parts])
            except NotHere:
                return
            name = fragment_name(self._term, fragment)
            put: Callable[[], Awaitable[str]] = lambda: self._bucket.put_over(name, body)  # noqa: E731
            await self._endurance.tried(put)
            self._there[fragment] = version
            self._service.seen.traffic.down += len(body)
