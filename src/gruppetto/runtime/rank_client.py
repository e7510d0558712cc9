"""The link of a rank that follows: it moves its parts of fragments as rank 0 orders, and says nothing of its own.

It has connections to the syncer's data endpoints only, one thread with an event loop, and no control connection. A
broken transfer is tried again until rank 0 says that the link is down, which makes everything before it void.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

from gruppetto.errors import AddressError, ConnectionLost, GruppettoError, ProtocolError
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.actions import Pull
from gruppetto.protocol.events import LinkDown
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.backlog import Backlog
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.orders import Welcomed
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.portion_donor import PortionServer
from gruppetto.runtime.redial import Redial
from gruppetto.runtime.security.fresh import PeerTls
from gruppetto.runtime.transfers import Tensors, Transfers
from gruppetto.runtime.until_one_ends import until_one_ends
from gruppetto.runtime.wire import WelcomeFrame

__all__ = ["RankClient"]

log = logging.getLogger("gruppetto.learner")


class RankClient:
    """Moves ``tensors`` of rank ``rank``. ``core`` is a picture of rank 0's, as the last boundary showed it; nothing is
    decided here. :attr:`news` is the lock around everything."""

    def __init__(
        self,
        core: LearnerCore,
        tensors: Tensors,
        layout: Layout,
        address: SyncerAddress,
        *,
        rank: int,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        stall_s: float = 30.0,
        taken: Callable[[Answer, int], None] = lambda answer, tokens: None,
        max_bytes_per_s: float | None = None,
        donates: tuple[str, int] | None = None,
        peers: PeerTls | None = None,
    ) -> None:
        """``taken`` is told of a contribution that is in with a piece of this rank. ``donates``: HOST and port at which
        this rank's portions of the learner's state are given to others; ``peers``: what learners show each other."""
        self.core = core
        self.clock: Clock = MonotonicClock()
        self.news = threading.Condition()
        self.welcome: WelcomeFrame | None = None
        self.failure: GruppettoError | None = None
        self.backlog = Backlog()
        self.reconnects = 0
        self._tensors, self._layout = tensors, layout
        self._http = HttpSyncer(address, token=token, tls=tls, stall_s=stall_s, rank=str(rank))
        if max_bytes_per_s is not None:
            self._http.pace = Bucket(max_bytes_per_s)
        self.donations: PortionServer | None = None
        if donates is not None:
            self.donations = PortionServer(
                *donates,
                token=token,
                stall_s=stall_s,
                core=core,
                tls=None if peers is None else peers.as_donor(),
                pace=self._http.pace,
            )
        self._rng = random.Random(f"{core.session}/{rank}")
        self.transfers = Transfers(
            self._http,
            tensors,
            self.backlog,
            self.news,
            layout_hash=layout.layout_hash,
            owner=lambda: (core.learner, self._life[1]),
            came=self._came,
            taken=taken,
            is_over=self._is_over,
            fail=self._fail,
            rng=self._rng,
        )
        self._wanted: dict[Fragment, Version] = {}
        self._linked = False
        self._life = Epoch(0), Incarnation(0)
        """As the newest Welcome says; the core's picture may be of an earlier boundary."""
        self._changed = asyncio.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"gruppetto-learner-{rank}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, order: Welcomed | LinkDown | Pull | Answer) -> None:
        """Carry out an order that concerns the network. Returns at once; the lock is held by the caller."""
        match order:
            case Welcomed(frame=frame):
                self._welcomed(frame, SyncerAddress.parse(order.address))
            case LinkDown():
                self._linked = False
                self._wanted.clear()
                self.backlog.link_down()
                self._in_loop(self._changed.set)
            case Pull():
                self._wanted[order.fragment] = order.version
                self.backlog.want(order.fragment, order.version)
            case Answer():
                self.backlog.offer(self._tensors.offer(order))
        self.stir()

    def stir(self) -> None:
        """Let the loops look at the backlog."""
        self._in_loop(self.transfers.stirs.all)

    def close(self, timeout_s: float, why: str = "") -> None:
        """End the thread; what was under way is dropped. May be called twice. ``why`` is for rank 0 to say."""
        with self.news:
            self._closing = True
        if self._thread.ident is not None:
            if self._main is not None:
                self._in_loop(self._main.cancel)
            self._thread.join()
        with self.news:
            self.backlog.link_down()

    @property
    def address(self) -> SyncerAddress:
        return self._http.address

    @property
    def bytes_up(self) -> int:
        return self._http.bytes_up

    @property
    def bytes_down(self) -> int:
        return self._http.bytes_down

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            asyncio.run(self._move_for_ever())
        except asyncio.CancelledError:
            pass
        except BaseException as wrong:  # our mistake: the next boundary tells the other ranks
            log.exception("the link of a rank to %s ended by a defect", self.address)
            self._fail(ConnectionLost(f"{self.address}: the link ended by a defect ({type(wrong).__name__}: {wrong})"))

    async def _move_for_ever(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        if self.donations is not None:
            try:
                await self.donations.open()
            except AddressError as wrong:  # the other ranks hear of it when somebody asks
                log.warning("%s; this learner gives its state to nobody", wrong)
        try:
            await self._move()
        finally:
            if self.donations is not None:
                await self.donations.close()

    async def _move(self) -> None:
        redial = Redial(self._rng)
        async with self._http:
            while not self._closing:
                if not self._linked:
                    self._changed.clear()
                    if not self._linked:
                        await self._changed.wait()
                    continue
                began = self.clock.now()
                try:
                    self.transfers.stirs.forget()
                    with self.news:
                        for fragment, version in self._wanted.items():
                            self.backlog.want(fragment, version)
                    await until_one_ends(self._until_unlinked(), *self.transfers.loops())
                except (ConnectionLost, ProtocolError, AddressError) as wrong:
                    log.debug("%s; tried again", wrong)
                    await self._http.forget()
                    self.reconnects += 1
                    await asyncio.sleep(redial.pause_s(lasted_s=self.clock.now() - began))

    async def _until_unlinked(self) -> None:
        self._changed.clear()
        if self._linked:
            await self._changed.wait()

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _welcomed(self, frame: WelcomeFrame, address: SyncerAddress) -> None:
        if self.welcome is None:
            parts = frame.to_fragmentation(self._layout)
            self.transfers.cut(parts, CODECS[frame.uplink], DOWNLINKS[frame.downlink])
            self._tensors.cut(parts, frame.welcome.apply)
        self.welcome = frame
        self._life = frame.welcome.epoch, frame.welcome.incarnation
        self._http.address, self._linked = address, True
        self._in_loop(self._changed.set)

    def _came(self, fragment: Fragment, version: Version, values: Lease) -> None:
        if self._wanted.get(fragment, version) <= version:
            self._wanted.pop(fragment, None)
        self._tensors.arrive(fragment, version, values)

    def _is_over(self, answer: Answer) -> bool:
        return self.core.newest_round >= answer.round or self._life != (answer.epoch, answer.incarnation)

    def _fail(self, failure: GruppettoError) -> None:
        with self.news:
            self.failure = failure
            self.news.notify_all()

    def _in_loop(self, call: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(call)
