"""A learner's vectors on their way: contributions and initial weights up, published fragments down.

Several loops at a time take jobs from the backlog. A learner of one rank moves whole fragments; a rank of several moves
its own part of each, over its own connections, and the syncer puts the parts together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ConnectionLost, GruppettoError, ProtocolError
from gruppetto.numerics.codec import Codec, encode_difference, encode_with_rest
from gruppetto.numerics.downlink import Downlink
from gruppetto.numerics.fragments import Fragmentation
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.actions import KeepRest
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.backlog import Backlog, Offer, SeedPart
from gruppetto.runtime.landing import Landing
from gruppetto.runtime.leases import Lease, LeasePool
from gruppetto.runtime.line import Line
from gruppetto.runtime.steps import Held

__all__ = ["Share", "Stirs", "Tensors", "Transfers", "next_stir"]

log = logging.getLogger("gruppetto.learner")

FIRST_PAUSE_S = 0.1
"""Between two tries of one transfer; doubled each time."""
LONGEST_RETRY_S = 1.0
"""Between two tries of one transfer."""
TRIES = 3
"""Of one download. Then the connection is made anew."""
DOWNLOADS, UPLOADS = 4, 2
"""Transfers at a time. Several connections fill a long link that one cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank moves of a fragment. Its own vector holds the elements ``held``, end to end, and all of these come
    down; up go the ``supplied``, which lie at ``places`` in its vector."""

    held: Runs
    supplied: Runs
    places: Runs


class Tensors(Protocol):
    """A learner's tensors, as its network side sees them. Only ``lend`` and ``share`` are called without the lock."""

    def cut(self, fragmentation: Fragmentation, apply: ApplyMode) -> None:
        """The model falls into these fragments; said once, before anything below."""
        ...

    def share(self, fragment: Fragment) -> Share | None:
        """What is to be moved of a fragment; None: all of it."""
        ...

    def lend(self, fragment: Fragment) -> Lease:
        """Room for the values of a fragment."""
        ...

    def arrive(self, fragment: Fragment, version: Version, values: Lease) -> None:
        """Values have come, to be applied when the core says so. Takes over the hold."""
        ...

    def offer(self, answer: Answer) -> Offer:
        """The base and the snapshot that this answer speaks of, and the rest that is owed, held for the caller."""
        ...

    def left(self, answer: Answer, rest: Lease) -> None:
        """What the encoding of this contribution leaves unsaid, before it is sent. Takes over the hold."""
        ...

    def keep_rest(self, action: KeepRest) -> None:
        """That one's rest is owed from now on."""
        ...

    def drop_rests(self) -> None:
        """Nothing is owed."""
        ...


class Stirs:
    """Wakes all loops that look at a backlog."""

    def __init__(self) -> None:
        self._events: list[asyncio.Event] = []

    def new(self) -> asyncio.Event:
        """One more loop, to wait with :func:`next_stir`."""
        event = asyncio.Event()
        self._events.append(event)
        return event

    def all(self) -> None:
        for event in self._events:
            event.set()

    def forget(self) -> None:
        """The loops have ended."""
        self._events.clear()


async def next_stir(event: asyncio.Event) -> None:
    await event.wait()
    event.clear()


class Transfers:
    """The loops of one connection, in its event loop.

    ``news`` is the lock around ``backlog`` and tensors, notified when something has moved. ``came`` is told of every
    arrival, with the lock held, and ``taken``, where an encoding leaves something unsaid, of a contribution that is in:
    of how many tokens it is made, since it may be another one of that round than was just sent. ``is_over`` says
    whether a contribution is not wanted any more; ``owner`` who seeds; ``fail`` takes what a person has to mend.
    """

    def __init__(
        self,
        http: Line,
        tensors: Tensors,
        backlog: Backlog,
        news: threading.Condition,
        *,
        layout_hash: str,
        owner: Callable[[], tuple[LearnerId, Incarnation]],
        came: Callable[[Fragment, Version, Lease], None],
        taken: Callable[[Answer, int], None],
        is_over: Callable[[Answer], bool],
        fail: Callable[[GruppettoError], None],
        rng: random.Random,
    ) -> None:
        self.stirs = Stirs()
        self.uplink: Codec | None = None
        """How contributions are encoded, once it is known."""
        self.offered = 0
        """Contributions uploaded."""
        self.given: dict[Fragment, int] = {}
        """Tokens of the contributions that were taken ahead of their round, when this learner has had notice."""
        self._http, self._tensors, self._backlog, self._news = http, tensors, backlog, news
        self._layout_hash, self._owner = layout_hash, owner
        self._came, self._taken, self._is_over, self._fail, self._rng = came, taken, is_over, fail, rng
        self._bodies = LeasePool()
        self._in_steps = False
        self._held: dict[Fragment, Held] = {}
        """What came last of each fragment, where steps may lead on from it. It is its base, or will be: no copy."""
        self._broken_off: dict[Fragment, tuple[Lease, Landing]] = {}

    def cut(self, parts: Fragmentation, uplink: Codec, downlink: Downlink) -> None:
        """The fragments are known now, and how they travel."""
        self.uplink, self._in_steps = uplink, downlink.steps is not None
        self._bodies = LeasePool(self._http.room, grain=max(1, max(part.numel for part in parts.fragments) // 8))

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Each runs until it fails: a loop that gives up has lost the connection."""
        return [*(self._download() for _ in range(DOWNLOADS)), *(self._upload() for _ in range(UPLOADS))]

    # ── down ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _download(self) -> None:
        stirred = self.stirs.new()
        while True:
            with self._news:
                job = self._backlog.next_pull()
            if job is None:
                await next_stir(stirred)
                continue
            fragment, version = job
            try:
                await self._pull(fragment, version)
            finally:
                with self._news:
                    self._backlog.pulled(fragment)
                    self._news.notify_all()

    async def _pull(self, fragment: Fragment, version: Version) -> None:
        room, landing = self._place_for(fragment)
        share, held = self._tensors.share(fragment), self._held.pop(fragment, None)
        runs = None if share is None else share.held
        try:
            for attempt in range(TRIES):
                try:
                    from_held = None if attempt else held
                    came, name = await self._http.fetch_from(
                        from_held, fragment, version, self._layout_hash, room, runs=runs, landing=landing
                    )
                    break
                except ConnectionLost:
                    if attempt + 1 == TRIES:
                        raise
                    await self._before_retry(attempt)
            if came < version:
                raise ProtocolError(
                    f"{self._http.address} sent version {came} of fragment {fragment} when asked for {version}"
                )
            if share is None and self._in_steps:
                self._held[fragment] = Held(values=room.hold(), name=name)
        except BaseException:
            self._keep(fragment, room, landing)
            raise
        finally:
            if held is not None:
                held.release()
        with self._news:
            self._came(fragment, came, room)

    def _place_for(self, fragment: Fragment) -> tuple[Lease, Landing]:
        if fragment in self._broken_off:
            return self._broken_off.pop(fragment)
        room = self._tensors.lend(fragment)
        return room, Landing(room)

    def _keep(self, fragment: Fragment, room: Lease, landing: Landing) -> None:
        """What is here of a download, to go on with when the link is up again; of the newest few."""
        if not landing.goes_on:
            room.release()
            return
        self._broken_off[fragment] = room, landing
        while len(self._broken_off) > DOWNLOADS:
            oldest, _ = self._broken_off.pop(next(iter(self._broken_off)))
            oldest.release()

    # ── up ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _upload(self) -> None:
        stirred = self.stirs.new()
        while True:
            with self._news:
                job = self._backlog.next_upload()
            if job is None:
                await next_stir(stirred)
                continue
            try:
                if isinstance(job, SeedPart):
                    await self._send_seed(job)
                else:
                    await self._contribute(job)
            finally:
                with self._news:
                    self._backlog.uploaded()
                    self._news.notify_all()

    async def _send_seed(self, part: SeedPart) -> None:
        """Give initial weights. A no that stays one is final: other weights will not come from here."""
        share = self._tensors.share(part.fragment)
        try:
            part.theta.ready()
            body, runs = _supplied(part.theta.values.view(np.uint8), 4, share)
            if not body.size:
                return
            for attempt in range(TRIES):
                try:
                    await self._http.seed(*self._owner(), part.fragment, body.data, runs=runs, again=attempt > 0)
                    return
                except ProtocolError as wrong:  # perhaps damaged on its way, or the turn is somebody else's by now
                    if attempt + 1 == TRIES:
                        self._fail(ProtocolError(f"the syncer does not take this learner's initial weights: {wrong}"))
                        raise
                    await self._before_retry(attempt)
        finally:
            part.release()

    async def _contribute(self, offer: Offer) -> None:
        """Deliver a contribution, however often it takes while its round is open: the round may need it to close."""
        codec = self.uplink
        assert codec is not None
        answer, share = offer.answer, self._tensors.share(offer.answer.fragment)
        # By itself: a block never lies at two ranks, and nobody encodes what another one supplies.
        payload_bytes = codec.payload_bytes(offer.base.values.size if share is None else share.supplied.numel)
        lease = self._bodies.lend(-(-payload_bytes // 4))
        body = lease.values.view(np.uint8)[:payload_bytes]
        try:
            try:
                if self._is_over(answer):
                    return
                offer.theta.ready()
                self._encode(offer, codec, share, body)
            finally:
                offer.release()
            runs = None if share is None else share.supplied
            attempt = 0
            while body.size and not self._is_over(answer):
                try:
                    taken, tokens = await self._http.contribute(
                        answer, codec.name, body.data, runs=runs, again=attempt > 0
                    )
                    if tokens and codec.keeps_rest:
                        with self._news:
                            self._taken(answer, tokens)
                    if taken or share is None or attempt + 1 >= TRIES:
                        self.offered += 1
                        if taken and answer.parting:
                            self.given[answer.fragment] = answer.tokens
                        return
                    # It may have overtaken what rank 0 has said of its base.
                except (ConnectionLost, ProtocolError) as wrong:
                    level = logging.INFO if attempt == 0 else logging.DEBUG
                    log.log(level, "round %d, fragment %d: %s; tried again", answer.round, answer.fragment, wrong)
                await self._before_retry(attempt)
                attempt = min(attempt + 1, 10)
        finally:
            lease.release()

    def _encode(self, offer: Offer, codec: Codec, apart: Share | None, body: NDArray[np.uint8]) -> None:
        """A coarse encoding says what is owed too, and what it leaves is noted before a byte leaves. ``apart``: only
        what this rank supplies is encoded, and owed."""
        base, theta = offer.base.values, offer.theta.values
        if not codec.keeps_rest:
            offset = 0
            for start, stop in ((0, base.size),) if apart is None else apart.places:
                end = offset + codec.payload_bytes(stop - start)
                encode_difference(base[start:stop], theta[start:stop], codec, body[offset:end])
                offset = end
            return
        left = self._tensors.lend(offer.answer.fragment)
        owed = None if offer.rest is None else offer.rest.values
        if apart is None:
            encode_with_rest(base, theta, owed, codec, left.values, body)
        else:
            rest = np.empty(apart.supplied.numel, np.float32)
            mine = None if owed is None else _at(owed, apart.places)
            encode_with_rest(_at(base, apart.places), _at(theta, apart.places), mine, codec, rest, body)
            left.values[:] = 0.0
            offset = 0
            for start, stop in apart.places:
                left.values[start:stop] = rest[offset : offset + stop - start]
                offset += stop - start
        with self._news:
            self._tensors.left(offer.answer, left)

    async def _before_retry(self, attempt: int) -> None:
        """A pause that grows with the attempts, counted from 0, and differs between learners."""
        await asyncio.sleep(self._rng.uniform(0.5, 1.0) * min(LONGEST_RETRY_S, FIRST_PAUSE_S * 2**attempt))


def _at(vector: NDArray[np.float32], places: Runs) -> NDArray[np.float32]:
    """The elements at these places, end to end."""
    parts = [vector[start:stop] for start, stop in places]
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [vector[:0]])


def _supplied(body: NDArray[np.uint8], word_bytes: int, share: Share | None) -> tuple[NDArray[np.uint8], Runs | None]:
    """What of a body goes up, copied only if it does not lie together; and what to say of it."""
    if share is None:
        return body, None
    parts = [body[start * word_bytes : stop * word_bytes] for start, stop in share.places]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts or [body[:0]])), share.supplied
