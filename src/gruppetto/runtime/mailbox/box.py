"""One box, as the syncer sees it: the part of a control connection and of uploads in
:mod:`~gruppetto.runtime.http_server`, for one learner.

Whoever opened a box speaks in one learner's name alone. What it says and hands in goes to the service and the desk as
from any connection; what is malformed closes the box.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.messages import Heartbeat
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.desk import Desk
from gruppetto.runtime.mailbox.bucket import Bucket, Conflict
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.letters import (
    FIRST_LETTER_BYTES,
    LETTER_BYTES,
    Cease,
    Letter,
    box_name,
    decode_letter,
    encode_letter,
    split,
)
from gruppetto.runtime.mailbox.shelf import Shelf
from gruppetto.runtime.mailbox.uploads import Uploads
from gruppetto.runtime.security.allowance import FRAMES, Allowance
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.wire import CloseCode, encode_frame

__all__ = ["Box"]

_log = logging.getLogger("gruppetto.syncer")

MAX_UNREAD = 32
"""Letters that may lie unread; then frames pile up where they are coalesced."""
HURRY = 4.0
"""Times ``poll_s``: how long good news waits for other news to go with."""
SILENCE = 2.0
"""Times ``stall_s``: a box from which nothing comes for so long is closed. Its learner's heartbeats would have come."""


class Box:
    """``reading`` bounds what is held in memory of letters; ``used`` takes the names of what has been read, to be
    deleted."""

    def __init__(
        self,
        name: str,
        term: int,
        *,
        bucket: Bucket,
        service: SyncerService,
        desk: Desk,
        shelf: Shelf,
        endurance: Endurance,
        complaints: Complaints,
        poll_s: float,
        stall_s: float,
        reading: asyncio.Semaphore,
        used: Callable[[str], None],
    ) -> None:
        self.name, self._term = name, term
        self._bucket, self._service, self._desk, self._shelf = bucket, service, desk, shelf
        self._endurance, self._complaints, self._used, self._reading = endurance, complaints, used, reading
        self._poll_s, self._stall_s = poll_s, stall_s
        self._now = asyncio.get_running_loop().time
        self._heard_at = self._now()
        self._up = self._down = 0
        self._there: dict[int, int] = {}
        """Letters that have come and are not read yet, and how long they are."""
        self._unread = 0
        self._came, self._stir = asyncio.Event(), asyncio.Event()
        self._pace = Allowance(FRAMES)
        self._uploads = Uploads(
            partial(self._name, "body"),
            bucket=bucket,
            desk=desk,
            used=used,
            stir=self._stir.set,
            malformed=self._malformed,
            complain=self._complain,
            hurry_s=HURRY * poll_s,
        )
        self.connection: Connection | None = None

    # ── from the server ──────────────────────────────────────────────────────────────────────────────────────────

    def seen(self, up: dict[int, int], down: int, bodies: set[int]) -> bool:
        """A listing: the letters that have come with their sizes, how many lie unread, the bodies. Whether there is
        news."""
        if down < self._unread:
            self._stir.set()  # there may be room again
        self._unread = down
        self._there = {number: size for number, size in up.items() if number >= self._up}
        self._uploads.tidy(bodies)
        news = self._up in self._there
        if news:
            self._came.set()
        elif self._now() > self._heard_at + SILENCE * self._stall_s and self.connection is not None:
            self.connection.close(CloseCode.GOING_AWAY, f"nothing came for {SILENCE * self._stall_s:g} s")
        return news

    def excuse(self) -> None:
        """The store is away: nobody can be heard, and nobody is dead for that."""
        now = self._now()
        if now > self._heard_at + self._stall_s:
            return  # he was silent before
        self._heard_at = now
        if self.connection is not None and self.connection.incarnation and self.connection.closing is None:
            beat = Heartbeat(learner=self.connection.learner, incarnation=self.connection.incarnation)
            self._service.heartbeat(encode_frame(beat))

    async def run(self) -> None:
        """From the Hello to the end."""
        try:
            hello = await self._next(FIRST_LETTER_BYTES)
            if not hello.frames:
                raise ProtocolError("a box begins with a HelloFrame")
            self.connection = self._service.greet(hello.frames[0], f"mailbox {self.name}")
        except ProtocolError as wrong:
            self._malformed("hello", wrong)
            await self._leave(Letter(cease=Cease(code=CloseCode.PROTOCOL, text=str(wrong)[:400])))
            return
        connection = self.connection
        connection.on_change = self._stir.set
        self._stir.set()
        writer = asyncio.create_task(self._write(connection))
        reader = asyncio.create_task(self._read(connection, hello))
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            if connection.closing is not None and not writer.done():
                await asyncio.wait({writer}, timeout=self._stall_s)
        finally:
            self._service.lost(connection)
            tasks = [writer, reader, *self._uploads.tasks]
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):  # our mistake
                    _log.error("box %s of %s ended by a defect", self.name, connection.learner, exc_info=result)

    # ── up ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, connection: Connection, letter: Letter) -> None:
        try:
            await self._take_in(connection, letter, skip=1)
            while not letter.bye:
                letter = await self._next(LETTER_BYTES)
                await self._take_in(connection, letter)
        except ProtocolError as wrong:
            self._malformed("control", wrong)
            connection.close(CloseCode.PROTOCOL, str(wrong))

    async def _next(self, limit: int) -> Letter:
        """The next letter, when it is there."""
        while True:
            size = self._there.pop(self._up, None)
            if size is None:
                self._came.clear()
                await self._came.wait()
                continue
            name = self._name("up", self._up)
            if size > limit:
                raise ProtocolError(f"a letter of {size} bytes; at most {limit} are allowed")
            async with self._reading:
                found = await self._endurance.tried(partial(self._bucket.get, name, limit))
                if found is None:
                    continue  # a listing will say whether it is there
                letter = decode_letter(found[0])
            self._up += 1
            self._used(name)
            self._heard_at = self._now()
            return letter

    async def _take_in(self, connection: Connection, letter: Letter, *, skip: int = 0) -> None:
        for frame in letter.frames[skip:]:
            while (wait_s := self._pace.take(self._now())) > 0:
                await asyncio.sleep(wait_s)
            self._service.receive(connection, frame)
        if letter.beat:
            self._service.heartbeat(letter.beat, speaker=connection.learner, wall_s=letter.wall[:32] or None)
        for put in letter.puts:
            self._uploads.take(put, connection.learner)

    # ── down ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _write(self, connection: Connection) -> None:
        """At most one letter in ``poll_s``, until the connection is closed."""
        while True:
            await self._stir.wait()
            self._stir.clear()
            if self._unread >= MAX_UNREAD and connection.closing is None:
                continue  # until he has read some, and a listing says so
            frames, said = connection.take(), self._uploads.take_said()
            closing = connection.closing
            if frames:
                await self._shelf.catch_up()  # what is announced is there before anybody hears of it
            parts = split(frames)
            for part in parts[:-1]:
                await self._send(Letter(frames=part))
            cease = None if closing is None else Cease(code=closing.code, text=closing.text[:400])
            if parts[-1] or said or cease is not None:
                await self._send(Letter(frames=parts[-1], said=said, cease=cease))
            if cease is not None:
                return
            await asyncio.sleep(self._poll_s)

    async def _send(self, letter: Letter) -> None:
        name, data = self._name("down", self._down), encode_letter(letter)
        try:
            await self._endurance.tried(lambda: self._bucket.put_new(name, data))
        except Conflict as wrong:
            raise ConnectionLost(f"{name} is there already, and nobody else may write it") from wrong
        self._down += 1
        self._unread += 1
        self._service.seen.traffic.down += len(data)

    async def _leave(self, letter: Letter) -> None:
        async with asyncio.timeout(self._stall_s):
            await self._send(letter)

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _name(self, way: str, number: int) -> str:
        return box_name(self._term, self.name, way, number)

    def _malformed(self, kind: str, wrong: ProtocolError) -> None:
        self._service.seen.malformed += 1
        self._complain(kind, wrong)

    def _complain(self, kind: str, wrong: ProtocolError) -> None:
        who = self.name if self.connection is None else self.connection.learner
        self._complaints.note((who, kind), f"mailbox, {who}: {str(wrong)[:500]}")
