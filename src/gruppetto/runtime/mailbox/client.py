"""A learner's end of a mailbox: what :mod:`gruppetto.runtime.http_client` is over HTTP, with the same calls.

A contribution goes up whole, as an object, before a letter tells of it. A fragment comes down as the object that the
syncer has left last. What is not there in this version is refused by name where a learner is made: several ranks,
several syncers, a state that others may ask for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ConnectionLost, GruppettoError, ProtocolError, StateError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Answer, Heartbeat
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.headers import (
    ANSWER_HEADER,
    CHECKSUM_HEADER,
    CODEC_HEADER,
    INCARNATION_HEADER,
    LEARNER_HEADER,
    NOT_YOUR_TURN,
    TOO_OFTEN,
)
from gruppetto.runtime.landing import Landing
from gruppetto.runtime.leases import Lease as Room
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.mailbox.bucket import Bucket, open_bucket
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.fetching import fetch_value
from gruppetto.runtime.mailbox.letters import Put, Said
from gruppetto.runtime.mailbox.post import Post
from gruppetto.runtime.mailbox.tenure import LEASE, MAX_LEASE_BYTES, Lease, decode_lease
from gruppetto.runtime.pacing import Bucket as Pace
from gruppetto.runtime.shard_map import ShardMap
from gruppetto.runtime.steps import Held
from gruppetto.runtime.verdict import verdict_of
from gruppetto.runtime.wire import checksum, encode_answer

__all__ = ["Heart", "MailSyncer"]

log = logging.getLogger("gruppetto.learner")

REQUESTS_A_STALL = 3.0
"""A request fails, and is made again, so often in the time in which a whole transfer may stand still."""


class Heart:
    """Beats with the letters, and in letters of their own when there is nothing else to say."""

    def __init__(self, syncer: MailSyncer, current: Callable[[], Heartbeat | None], period_s: float) -> None:
        self._syncer, self._pulse = syncer, (current, period_s)

    def start(self) -> None:
        self._syncer.pulse = self._pulse

    def stop(self) -> None:
        self._syncer.pulse = None


class MailSyncer:
    """A :class:`~gruppetto.runtime.line.Line` through a mailbox. Raises :class:`SettingError` and
    :class:`AddressError`."""

    def __init__(self, address: MailboxAddress, *, stall_s: float, bucket: Bucket | None = None) -> None:
        """``bucket``: what the address leads to, if it is open already."""
        self.address: SyncerAddress = address
        self.stall_s = stall_s
        self.pace: Pace | None = None
        self.bytes_up = self.bytes_down = 0
        self.pulse: tuple[Callable[[], Heartbeat | None], float] | None = None
        self.bucket = open_bucket(address, limit_s=stall_s / REQUESTS_A_STALL) if bucket is None else bucket
        self._poll_s = address.poll_s
        self._endurance = Endurance(log, patience_s=stall_s)
        self._lease: Lease | None = None
        self._post: Post | None = None
        self._deserted = ""
        """The lease under which nobody has answered the last time, as it was."""

    async def __aenter__(self) -> MailSyncer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log.info("asked of %s: %s", self.bucket.where, self.bucket.account())

    def heart(self, current: Callable[[], Heartbeat | None], period_s: float) -> Heart:
        return Heart(self, current, period_s)

    async def directory(self, address: SyncerAddress | None = None) -> ShardMap | None:
        """One syncer serves through a mailbox."""
        return None

    def room(self, numel: int) -> NDArray[np.float32]:
        """Fresh memory for bodies that are to go up."""
        return np.empty(numel, np.float32)

    async def forget(self) -> None:
        """Nothing waits for use here: the store's client keeps its connections itself."""

    @asynccontextmanager
    async def control(self) -> AsyncIterator[Post]:
        """An open box; nothing has been said in it yet. Raises :class:`ConnectionLost` while nobody serves."""
        where = self.bucket.where
        found = await self.bucket.get(LEASE, MAX_LEASE_BYTES)
        if found is None:
            raise ConnectionLost(f"{where}: no syncer serves there yet")
        try:
            lease = decode_lease(found[0], where)
        except StateError as wrong:
            raise ProtocolError(str(wrong)) from wrong
        if lease.ended:
            raise ConnectionLost(f"{where}: no syncer serves there at this moment")
        if found[1] == self._deserted:
            raise ConnectionLost(f"{where}: the syncer does not renew its lease")
        self._deserted = found[1]
        post = Post(
            self.bucket,
            lease,
            poll_s=self._poll_s,
            stall_s=self.stall_s,
            endurance=self._endurance,
            pulse=lambda: self.pulse,
        )
        why: list[Exception] = []

        async def run(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
            try:
                await loop()
            except Exception as wrong:
                if not isinstance(wrong, GruppettoError):  # our mistake: dialling anew may help, silence does not
                    log.exception("a loop of the mailbox ended by a defect")
                why.append(wrong)
                await post.end(wrong)

        tasks = [asyncio.create_task(run(loop)) for loop in (post.write, post.read, post.watch)]
        self._lease, self._post = lease, post
        try:
            yield post
        finally:
            self._post = None
            if post.heard:
                self._deserted = ""
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await post.end(why[0] if why else None)

    async def fetch_from(
        self,
        held: Held | None,
        fragment: Fragment,
        version: Version,
        layout_hash: str,
        into: Room,
        *,
        runs: Runs | None = None,
        landing: Landing | None = None,
    ) -> tuple[Version, str]:
        """The newest value of a fragment, always whole: of this version or a newer one. Its version, and the name of
        what is in ``into``."""
        assert runs is None, "a learner of many ranks is refused"
        landing = Landing(into) if landing is None else landing
        return await self._endurance.tried(
            lambda: self._fetch(fragment, version, layout_hash, landing, into.values.size)
        )

    async def contribute(
        self, answer: Answer, codec: str, body: memoryview, *, runs: Runs | None = None, again: bool = False
    ) -> tuple[bool, int]:
        """Leave one contribution; whether the syncer has taken it, and of how many tokens the one is made that this
        learner has in that round; 0: none is."""
        assert runs is None, "a learner of many ranks is refused"
        headers = {ANSWER_HEADER: encode_answer(answer), CODEC_HEADER: codec, CHECKSUM_HEADER: f"{checksum(body):08x}"}

        def put(number: int) -> Put:
            return Put(
                number=number,
                kind="contribution",
                fragment=answer.fragment,
                round=answer.round,
                length=body.nbytes,
                headers=headers,
            )

        said = await self._hand_in(body, put)
        return verdict_of(said.text)

    async def seed(
        self,
        learner: LearnerId,
        incarnation: Incarnation,
        fragment: Fragment,
        body: memoryview,
        *,
        runs: Runs | None = None,
        again: bool = False,
    ) -> None:
        """Leave the initial weights of one fragment, float32."""
        assert runs is None, "a learner of many ranks is refused"
        headers = {
            LEARNER_HEADER: str(learner),
            INCARNATION_HEADER: str(incarnation),
            CODEC_HEADER: "fp32",
            CHECKSUM_HEADER: f"{checksum(body):08x}",
        }
        await self._hand_in(
            body,
            lambda number: Put(number=number, kind="seed", fragment=fragment, length=body.nbytes, headers=headers),
        )

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hand_in(self, body: memoryview, put: Callable[[int], Put]) -> Said:
        post = self._open()
        if self.pace is not None:
            for at in range(0, body.nbytes, self.pace.burst_bytes):
                await self.pace.take(min(self.pace.burst_bytes, body.nbytes - at))
        said = await post.hand_in(bytes(body), put)
        self.bytes_up += body.nbytes
        if said.status != 200:
            self._refused(said)
        return said

    def _refused(self, said: Said) -> NoReturn:
        text = f"{self.bucket.where}: {said.text.decode('utf-8', 'replace')[:400] or 'no reason given'} ({said.status})"
        if said.status >= 500 or said.status in (NOT_YOUR_TURN, TOO_OFTEN):
            raise ConnectionLost(text)
        raise ProtocolError(text)

    async def _fetch(
        self, fragment: Fragment, version: Version, layout_hash: str, landing: Landing, numel: int
    ) -> tuple[Version, str]:
        self._open()
        assert self._lease is not None
        came, crc, num_bytes = await fetch_value(
            self.bucket, self._lease.term, fragment, version, layout_hash, landing, numel
        )
        self.bytes_down += num_bytes
        return came, crc

    def _open(self) -> Post:
        if self._post is None:
            raise ConnectionLost(f"{self.bucket.where}: no box is open")
        return self._post
