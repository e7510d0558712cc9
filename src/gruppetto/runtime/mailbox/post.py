"""One open box, as its learner sees it: letters up, letters down, and a look at who serves now and then."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.messages import Heartbeat
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.control_socket import NotAccepted
from gruppetto.runtime.mailbox.bucket import Bucket, Conflict
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.letters import (
    LETTER_BYTES,
    MAX_ITEMS,
    Cease,
    Letter,
    Put,
    Said,
    box_name,
    decode_letter,
    encode_letter,
    split,
)
from gruppetto.runtime.mailbox.rhythm import REST, Rhythm
from gruppetto.runtime.mailbox.tenure import LEASE, MAX_LEASE_BYTES, Lease, Watch, decode_lease
from gruppetto.runtime.wire import CloseCode, Frame, decode_frame, encode_frame

__all__ = ["Post"]

log = logging.getLogger("gruppetto.learner")

MAX_UNSENT = 16
"""Frames that wait for a letter. Then whoever sends waits too, and what is out of date by then is never said."""
MANY_READ = 16
"""Letters that are read before they are deleted, by one request."""
MOST_READ = 1024
"""Names that are kept when deleting fails."""
SILENCE = 2.0
"""Times the lease's own time: a syncer that has not renewed it for so long is not there."""
REPLY_STALLS = 4.0
"""Times ``stall_s``: how long the answer to a body may take. It waits for room there, as an upload at its socket."""


class Post:
    """Opened for one lease. :meth:`run` ends by raising, and what waits here then hears of it."""

    def __init__(
        self,
        bucket: Bucket,
        lease: Lease,
        *,
        poll_s: float,
        stall_s: float,
        endurance: Endurance,
        pulse: Callable[[], tuple[Callable[[], Heartbeat | None], float] | None],
    ) -> None:
        """``pulse``: what the heart says, and how often; None while it does not beat."""
        self._bucket, self._lease, self._stall_s = bucket, lease, stall_s
        self._endurance, self._pulse = endurance, pulse
        self._rhythm = Rhythm(poll_s, min(REST * poll_s, stall_s / 4))
        self._box = secrets.token_hex(8)
        self._up = self._down = self._bodies = 0
        self._frames: deque[bytes] = deque()
        self._puts: list[Put] = []
        self._replies: dict[int, asyncio.Future[Said]] = {}
        self._came: deque[bytes | Cease] = deque()
        self._news, self._look, self._stir, self._drained, self._gone = (asyncio.Event() for _ in range(5))
        self._bye = False
        self._why: Exception | None = None
        self._read: list[str] = []

    @property
    def heard(self) -> bool:
        """Something has come."""
        return self._down > 0

    # ── for the client ───────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, frame: Frame) -> None:
        """Put one frame into the next letter. Raises :class:`ConnectionLost`."""
        while len(self._frames) >= MAX_UNSENT:
            self._check()
            self._drained.clear()
            await self._drained.wait()
        self._check()
        self._frames.append(encode_frame(frame))
        self._stir.set()

    async def receive(self, allowed: frozenset[str]) -> Frame:
        """The next frame. Raises :class:`ConnectionLost` when none will come, :class:`ProtocolError` for nonsense."""
        while not self._came:
            self._check()
            self._news.clear()
            await self._news.wait()
        came = self._came.popleft()
        if isinstance(came, bytes):
            return decode_frame(came, allowed)
        said = came.text[:200] or f"code {came.code}"
        if came.code == CloseCode.PROTOCOL:
            raise NotAccepted(f"{self._bucket.where} does not accept what this learner says: {said}")
        raise ConnectionLost(f"{self._bucket.where}: the syncer closed the box ({said})")

    def stalled(self) -> None:
        """The store has the letter; nothing here can be done better."""

    async def close(self) -> None:
        """Say that nothing more will come, and see it go."""
        self._bye = True
        self._stir.set()
        while self._why is None and not self._gone.is_set():
            self._drained.clear()
            await self._drained.wait()

    async def hand_in(self, body: bytes, put: Callable[[int], Put]) -> Said:
        """Leave a body, tell of it, and hear what has become of it. Raises :class:`ConnectionLost`."""
        number, self._bodies = self._bodies, self._bodies + 1
        await self._create(box_name(self._lease.term, self._box, "body", number), body)
        self._check()
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._puts.append(put(number))
        self._stir.set()
        try:
            async with asyncio.timeout(REPLY_STALLS * self._stall_s):
                said: Said = await reply
                return said
        except TimeoutError:
            raise ConnectionLost(f"{self._bucket.where}: nobody has said what became of a body") from None
        finally:
            del self._replies[number]

    # ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def write(self) -> None:
        """At most one letter in ``poll_s``, with all that waits."""
        loop, spoke_at = asyncio.get_running_loop(), float("-inf")
        while True:
            pulse = self._pulse()
            due_s = None if pulse is None else max(0.0, spoke_at + pulse[1] - loop.time())
            try:
                async with asyncio.timeout(due_s):
                    await self._stir.wait()
            except TimeoutError:
                pass
            self._stir.clear()
            letters = self._letters(pulse)
            for letter in letters:
                await self._create(box_name(self._lease.term, self._box, "up", self._up), encode_letter(letter))
                self._up += 1
            spoke_at = loop.time()
            if letters and letters[-1].bye:
                self._gone.set()
            if any(letter.frames or letter.puts for letter in letters):
                self._rhythm.news()
                self._look.set()
            self._drained.set()
            await asyncio.sleep(self._rhythm.poll_s)

    async def read(self) -> None:
        """Look for the next letter, and take it in."""
        while True:
            found = await self._endurance.tried(self._next_letter)
            if found is None:
                await self._tidy(at_least=1)
                self._look.clear()
                try:
                    async with asyncio.timeout(self._rhythm.pause_s()):
                        await self._look.wait()
                    await asyncio.sleep(self._rhythm.poll_s / 2)  # no answer can be there at once
                except TimeoutError:
                    pass
                continue
            self._rhythm.news()
            letter = decode_letter(found)
            self._read.append(box_name(self._lease.term, self._box, "down", self._down))
            self._down += 1
            self._came += letter.frames
            if letter.cease is not None:
                self._came.append(letter.cease)
            for said in letter.said:
                if (reply := self._replies.get(said.number)) is not None and not reply.done():
                    reply.set_result(said)
            self._news.set()
            await self._tidy(at_least=MANY_READ)

    async def watch(self) -> None:
        """See whether the one who serves still does. Raises :class:`ConnectionLost` when he does not."""
        watch, loop, where = Watch(), asyncio.get_running_loop(), self._bucket.where
        while True:
            await asyncio.sleep(self._lease.lease_s / 2)
            if self._endurance.away:
                watch.missed()
            found = await self._endurance.tried(lambda: self._bucket.get(LEASE, MAX_LEASE_BYTES))
            if found is None:
                raise ConnectionLost(f"{where}: nobody serves there any more")
            lease = decode_lease(found[0], where)
            if lease.term != self._lease.term:
                raise ConnectionLost(f"{where}: another syncer serves the run now")
            if lease.ended:
                raise ConnectionLost(f"{where}: the syncer has stopped")
            silent_s = watch.saw(found[1], loop.time())
            if silent_s >= SILENCE * lease.lease_s:
                raise ConnectionLost(f"{where}: the syncer has not renewed its lease for {silent_s:.0f} s")

    async def end(self, why: Exception | None) -> None:
        """Nothing more comes or goes; who waits hears ``why``. What nobody will read any more is removed."""
        self._why = why or ConnectionLost(f"{self._bucket.where}: the box is closed")
        for event in (self._news, self._drained):
            event.set()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ConnectionLost(str(self._why)))
        if self._down == 0 and self._up:  # nobody has answered: perhaps nobody is there to clean up
            self._read += [box_name(self._lease.term, self._box, "up", n) for n in range(self._up)]
        await self._tidy(at_least=1, again=False)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _letters(self, pulse: tuple[Callable[[], Heartbeat | None], float] | None) -> list[Letter]:
        """All that is to be said now."""
        parts, puts = split(self._frames), tuple(self._puts[:MAX_ITEMS])
        self._frames.clear()
        del self._puts[: len(puts)]
        if self._puts:
            self._stir.set()
        heart = None if pulse is None else pulse[0]()
        beat = b"" if heart is None else encode_frame(heart)
        if not (parts[0] or puts or beat or self._bye):
            return []
        letters = [Letter(frames=part) for part in parts[:-1]]
        wall = f"{wall_time_s():.3f}" if beat else ""
        return [*letters, Letter(frames=parts[-1], puts=puts, beat=beat, wall=wall, bye=self._bye)]

    async def _next_letter(self) -> bytes | None:
        found = await self._bucket.get(box_name(self._lease.term, self._box, "down", self._down), LETTER_BYTES)
        return None if found is None else found[0]

    async def _create(self, name: str, body: bytes) -> None:
        try:
            await self._endurance.tried(lambda: self._bucket.put_new(name, body))
        except Conflict:
            raise ConnectionLost(f"{self._bucket.where}: somebody else writes into this learner's box") from None

    async def _tidy(self, *, at_least: int, again: bool = True) -> None:
        """Delete what has been read. Should that fail, the syncer does it when the box is closed."""
        if len(self._read) < at_least:
            return
        names, self._read = self._read, []
        try:
            await self._bucket.delete(names)
        except Exception as wrong:
            log.debug("%s", wrong)
            self._read = names if again and len(names) < MOST_READ else []

    def _check(self) -> None:
        if self._why is not None:
            raise ConnectionLost(str(self._why)) from self._why
        if self._bye:
            raise ProtocolError("the box is closed")
