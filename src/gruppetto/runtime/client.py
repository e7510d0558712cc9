"""A learner's link to its syncer: one thread, one event loop, no waiting in the training loop.

Two threads step the core, one at a time under :attr:`LearnerClient.news`: the training thread with its steps, this
one with everything that comes from the network. The lock is held while the core decides and, at a boundary, while
parameters are copied; never while bytes are encoded or moved. Heartbeats have a third thread.

A lost connection is dialled again for ever, with growing pauses. What was under way is then dropped: the Welcome
brings everything up to date. Only a lost connection: when the syncer does not accept what this learner says, saying it
again on another connection changes nothing, and the client rests.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gruppetto.errors import (
    AddressError,
    ConnectionLost,
    GruppettoError,
    ProtocolError,
    Refused,
    SettingError,
    StateError,
)
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.deal import Shard
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.actions import DropRests, KeepRest, LearnerAction, Pull, Recover, Seed
from gruppetto.protocol.admission import ADVICE, CLIP_ADVICE, ROUTINE
from gruppetto.protocol.events import Arrived, LearnerEvent, LinkDown, Taken
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Ask,
    Begin,
    Clipping,
    Deferred,
    Donor,
    Heartbeat,
    Marked,
    Marker,
    Progress,
    Refusal,
    RefusalReason,
    Rejection,
    Welcome,
)
from gruppetto.protocol.units import Fragment, Incarnation, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import AddressBook, Fixed
from gruppetto.runtime.backlog import Backlog
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.donation import Manifest
from gruppetto.runtime.donor import DonationServer
from gruppetto.runtime.http_client import NotAccepted
from gruppetto.runtime.joining import Visit
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.line import Control, Heart, heart_of, line_to
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.orders import RankOrder, Welcomed
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.recovering import Find, Recovering
from gruppetto.runtime.redial import Redial
from gruppetto.runtime.security.fresh import PeerTls
from gruppetto.runtime.shard_books import ShardBook, Shards
from gruppetto.runtime.transfers import Tensors, Transfers, next_stir
from gruppetto.runtime.wire import FROM_SYNCER, Frame, HelloFrame, WelcomeFrame

__all__ = ["Beside", "LearnerClient", "until_one_ends"]

log = logging.getLogger("gruppetto.learner")

HEARTBEATS_A_LEASE = 4
HELLO_S = 10.0
"""For the answer to a Hello, which takes the syncer a second at most. A connection made while the syncer, or something
on the way, stood still may never get one: then another is made, soon."""
DIAL_S = 5.0
"""For one of several addresses: a host that is gone answers nothing at all, and another one may."""


MAX_MENDABLE = 16
"""Different lines about what a person can mend."""

_HELLO_REPLIES = frozenset({"WelcomeFrame", "Refusal"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What the client of another shard of the run has from the first one's: its lock, and the map."""

    shards: Shards
    number: int
    news: threading.Condition
    may_seed: Callable[[], bool]
    """The first weights of all shards are to be one learner's, as long as there is one that gives them."""


class LearnerClient:
    """Keeps ``core`` in touch with the syncer at ``address``, or at the first of several at which one serves the run;
    a book is looked up before every dialling.

    ``stall_s`` is how long a transfer may stand still. :attr:`news` is the lock around the core, and is notified
    whenever something has changed. :attr:`failure` is what a person has to mend, or a refusal; after either the client
    rests. ``donates``: HOST and port at which this learner gives its state to others. ``has_own``: it has saved a state
    itself, should nobody give one. ``peers``: what learners show each other. ``also``: what concerns the other ranks of
    this learner, of which this is rank 0, in the order in which they have to do it; called with the lock held.
    ``max_bytes_per_s``: what bodies go up at, at most.
    ``beside``: it is for a shard of the run that is not the first.
    """

    def __init__(
        self,
        core: LearnerCore,
        tensors: Tensors,
        layout: Layout,
        address: SyncerAddress | Sequence[SyncerAddress] | AddressBook,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        stall_s: float = 30.0,
        library: str = "",
        donates: tuple[str, int] | None = None,
        has_own: bool = False,
        fits: Callable[[Manifest], None] = lambda manifest: None,
        peers: PeerTls | None = None,
        also: Callable[[RankOrder], None] | None = None,
        max_bytes_per_s: float | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.core = core
        fixed = (address,) if isinstance(address, SyncerAddress) else address
        self._book: AddressBook = Fixed(*fixed) if isinstance(fixed, Sequence) else fixed
        self.addresses = self._book.addresses()
        self.clock: Clock = MonotonicClock() if clock is None else clock
        self.news = threading.Condition() if beside is None else beside.news
        self.shards: Shards | None = None if beside is None else beside.shards
        """Where the other shards of the run are; None while it is not known, and where there are none."""
        self.shard = Shard() if beside is None else beside.shards.shard(beside.number)
        """The one that this client is connected to."""
        self._knows_shards, self._may_seed = beside is not None, beside.may_seed if beside is not None else _always
        self.welcome: WelcomeFrame | None = None
        """The newest."""
        self.failure: GruppettoError | None = None
        self.trouble = ""
        """Why the link is down, in words."""
        self._mendable: set[str] = set()
        """What has been said that a person can mend."""
        self.seed_wanted = False
        self.backlog = Backlog()
        self.reconnects = 0
        """Connections lost and made again."""
        self.on_taken: Callable[[Answer, int], None] | None = None
        """Told instead of the core: of many ranks any one may hear that a contribution has been taken."""
        self._leads, self._also = also is not None, also or _alone
        self._tensors, self._layout, self._library = tensors, layout, library
        self._rng = random.Random(core.session) if rng is None else rng
        self._silence = asyncio.Event()
        several = len(self.addresses) > 1 or beside is not None
        self._http = line_to(
            self.addresses[0], token=token, tls=tls, stall_s=stall_s, dial_s=min(DIAL_S, stall_s) if several else None
        )
        if max_bytes_per_s is not None:
            self._http.pace = Bucket(max_bytes_per_s)
        self.transfers = Transfers(
            self._http,
            tensors,
            self.backlog,
            self.news,
            layout_hash=layout.layout_hash,
            owner=lambda: (core.learner, core.incarnation),
            came=self._came,
            taken=self._taken,
            is_over=self._is_over,
            fail=self._fail,
            rng=self._rng,
        )
        self._heartbeats: Heart | None = None
        self.donations: DonationServer | None = None
        """Where others ask for this learner's state; None if it gives none."""
        if donates is not None:
            self.donations = DonationServer(
                *donates, token=token, stall_s=stall_s, core=core, tls=None if peers is None else peers.as_donor()
            )
        self.recovering: Recovering | None = None
        """The search for a state to begin from, the only one of this process."""
        self._has_own, self._token, self._fits, self._peers = has_own, token, fits, peers
        self._search: asyncio.Task[None] | None = None
        self._dial_heart = partial(heart_of, self._http, self._heartbeat, token=token, tls=tls)
        if several:
            self._dial_heart = partial(self._dial_heart, on_silence=lambda: self._in_loop(self._silence.set))
        self._complaints = Complaints(log)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._closing, self._last_words = False, ""
        self._thread = threading.Thread(target=self._run, name="gruppetto-learner", daemon=True)

    # ── from the training thread ─────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to dial."""
        self._thread.start()

    def perform(self, actions: Sequence[LearnerAction], *, told: bool = False) -> None:
        """Carry out what concerns the network. Returns at once; the lock is held by the caller. ``told``: the other
        ranks of this learner know of it already."""
        also = _alone if told else self._also
        for action in actions:
            match action:
                case Progress():
                    self.backlog.report(action)
                case Answer():
                    self.backlog.offer(self._tensors.offer(action))
                    also(action)
                case Deferred():
                    self.backlog.defer(action)
                case Marked():
                    self.backlog.mark(action)
                case Pull():
                    self.backlog.want(action.fragment, action.version)
                    also(action)
                case Seed():
                    self.seed_wanted = True
                case Recover():
                    self._begin_search(action)
                case KeepRest():
                    self._tensors.keep_rest(action)
                    also(action)
                case DropRests():
                    self._tensors.drop_rests()
                    also(action)
                case _:
                    raise AssertionError(f"not for the network: {action}")
        self._stir()

    def close(self, timeout_s: float, why: str = "") -> None:
        """Say what is left to say and goodbye, if there is a link, and end all threads. May be called twice. ``why``:
        of what the training has failed."""
        with self.news:
            self._closing, self._last_words = True, why
            linked = self.core.linked
            self._stir()
        if self._thread.ident is not None:
            self._thread.join(timeout_s if linked else 0.0)
            if self._main is not None:
                self._in_loop(self._main.cancel)
            self._thread.join()
        if self._heartbeats is not None:
            self._heartbeats.stop()
        with self.news:
            self.backlog.link_down()

    @property
    def address(self) -> SyncerAddress:
        """The one in use, or being dialled."""
        return self._http.address

    @property
    def bytes_up(self) -> int:
        return self._http.bytes_up

    @property
    def bytes_down(self) -> int:
        return self._http.bytes_down

    @property
    def offered(self) -> int:
        """Contributions uploaded."""
        return self.transfers.offered

    @property
    def given(self) -> dict[Fragment, int]:
        """Tokens of the contributions that were taken ahead of their round, when this learner has had notice."""
        return self.transfers.given

    @property
    def waiting_for(self) -> str:
        """What keeps this learner from its first step, in words; "" if nothing does."""
        core, total = self.core, len(self.core.fragments)
        if not core.linked:
            where = ", ".join(map(str, self.addresses))
            why = self.trouble.removeprefix(where).lstrip(": ")  # it begins with the address that was dialled
            return f"the syncer at {where}" + (f" ({why})" if why else "")
        if core.recovering and self.recovering is not None:
            return self.recovering.waiting_for
        if not core.synchronised:
            held = sum(1 for fragment in core.fragments if fragment.version >= 0)
            if self.backlog.uploads:
                return f"its first weights to reach the syncer, {self.backlog.uploads}/{total} fragments to go"
            return f"weights from the syncer, {held}/{total} fragments are here"
        return "" if core.begun else "the other learners"

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            asyncio.run(self._dial_for_ever())
        except asyncio.CancelledError:
            pass
        except BaseException as wrong:  # our mistake: never a silent end of the thread, never an end of training
            log.exception("the link to %s ended by a defect; training goes on alone", self.address)
            self._fail(ConnectionLost(f"{self.address}: the link ended by a defect ({type(wrong).__name__}: {wrong})"))

    async def _dial_for_ever(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await self._open_donations()
            await self._dial()
        finally:
            if self._search is not None:
                self._search.cancel()
                await asyncio.gather(self._search, return_exceptions=True)
            if self.donations is not None:
                await self.donations.close()

    async def _open_donations(self) -> None:
        """Where it cannot listen, a learner rides all the same: it gives nothing."""
        if self.donations is None:
            return
        try:
            where = await self.donations.open()
        except AddressError as wrong:
            log.warning("%s; this learner gives its state to nobody", wrong)
            self.donations = None
            return
        with self.news:
            self.core.donates_at = where

    async def _dial(self) -> None:
        redial = Redial(self._rng)
        failed = 0  # addresses in a row that are no syncer's, as far as a person can mend it
        async with self._http:
            while not self._closing:
                trouble: GruppettoError | None = None
                began = self.clock.now()
                try:
                    await self._session()
                except ConnectionLost as wrong:
                    trouble, failed = wrong, 0
                except (SettingError, StateError) as wrong:  # a person has to mend it, here
                    self._fail(wrong)
                except (AddressError, ProtocolError) as wrong:
                    trouble, failed = wrong, failed + 1
                    if self.welcome is None and self.failure is None and failed >= len(self.addresses):
                        self._fail(wrong)
                if self.failure is not None or self._closing:
                    return
                await self._http.forget()
                if self.shards is not None:
                    await self.shards.look(self._http, self.shard.number)
                if self._turn_to_the_next() and self.clock.now() - began < DIAL_S:
                    self._lost(trouble, again=redial.again)
                    continue  # a pause comes when all have been tried
                pause_s = redial.pause_s(lasted_s=self.clock.now() - began)
                self._lost(trouble, again=redial.again)
                await asyncio.sleep(pause_s)

    def _turn_to_the_next(self) -> bool:
        """Dial another address next; False when it is the first one's turn again."""
        if (found := self._book.addresses()) != self.addresses:
            self.addresses, self._http.address = found, found[0]
            return False
        turn = (self.addresses.index(self.address) + 1) % len(self.addresses)
        self._http.address = self.addresses[turn]
        return turn > 0

    async def _session(self) -> None:
        """One connection, from Hello to its end."""
        if not self._knows_shards:
            await self._look_for_shards()
        async with self._http.control() as socket:
            with self.news:
                hello, may_seed = self.core.hello(), self._may_seed()
            if not may_seed:
                hello = replace(hello, can_seed=False)
            await socket.send(HelloFrame.of(hello, self._layout, self._library))
            reply = await self._answer_to_hello(socket)
            said = reply.welcome if isinstance(reply, WelcomeFrame) else reply
            assert isinstance(said, Welcome | Refusal)
            if self.core.knows_newer(said):
                raise ConnectionLost(
                    f"split brain: {self.address} serves epoch {said.epoch} of this run, which was in epoch "
                    f"{self.core.epoch} already; it is not believed"
                )
            if isinstance(reply, Refusal):
                if reply.reason is RefusalReason.CANNOT_SEED and not may_seed:
                    raise ConnectionLost(f"shard {self.shard} waits for the first weights of the run")
                self._refused(reply)
                return
            assert isinstance(reply, WelcomeFrame)
            self.transfers.stirs.forget()
            self._silence.clear()
            self._welcomed(reply, opens=True)
            try:
                await until_one_ends(
                    self._listen(socket),
                    self._speak(socket),
                    self._notice_silence(),
                    *self.transfers.loops(),
                )
            finally:
                with self.news:
                    self._step(LinkDown())
                    self.backlog.link_down()
                    self._also(LinkDown())

    async def _look_for_shards(self) -> None:
        """Of a run that several syncers serve: find all of them, and turn to the first, which leases data slots."""
        told = await self._http.directory()
        if told is None or told.shards == 1:
            return
        if self._leads:
            raise SettingError(
                f"run {told.run_id} is served by {told.shards} shards, and this learner has several ranks",
                where="Learner.syncer",
                fix="serve the run with one syncer",
            )
        if told.missing:
            names = ", ".join(str(Shard(number=number, of=told.shards)) for number in told.missing)
            raise ConnectionLost(f"{self.address}: shard {names} has not said yet where it is")
        if self.donations is not None:  # a peer's state would have to be cut as the shards are, at one moment
            await self.donations.close()
        with self.news:
            self.core.donates_at, self.donations = "", None
            self.shards = Shards(told, self._book)
            self.shard, self._book = self.shards.shard(1), ShardBook(self.shards, 1)
            self.addresses = self._book.addresses()
            self._http.address = self.addresses[0]
            self._knows_shards = True
            self.news.notify_all()

    async def _notice_silence(self) -> None:
        await self._silence.wait()
        raise ConnectionLost(f"{self.address} does not answer heartbeats any more")

    async def _answer_to_hello(self, socket: Control) -> Frame:
        try:
            async with asyncio.timeout(min(HELLO_S, self._http.stall_s)):
                return await socket.receive(_HELLO_REPLIES)
        except TimeoutError as wrong:
            socket.stalled()
            raise ConnectionLost(f"{self.address} took the connection but does not answer the hello") from wrong

    async def _listen(self, socket: Control) -> None:
        while True:
            try:
                frame = await socket.receive(FROM_SYNCER)
            except ConnectionLost:
                if self._closing:
                    await asyncio.Event().wait()  # the session ends when the goodbye has arrived
                raise
            except NotAccepted as wrong:
                self._fail(wrong)
                raise
            match frame:
                case WelcomeFrame():
                    self._welcomed(
                        frame, opens=False
                    )  # the learner that was to give the first weights has gone, or the like
                case Refusal():
                    self._refused(frame)
                    return
                case Begin() | Ask() | Rejection() | Clipping() | Announcement() | Marker():
                    self._complain(frame)
                    with self.news:
                        self._step(frame)
                case _:
                    raise AssertionError(frame)

    async def _speak(self, socket: Control) -> None:
        stirred = self.transfers.stirs.new()
        while True:
            with self.news:
                frames, closing = self.backlog.take_frames(), self._closing
                goodbye = self.core.goodbye(self._last_words)
            for frame in frames:
                await socket.send(frame)
            if frames:
                self._stir()  # an offer may have waited for this
            if closing:
                await socket.send(goodbye)
                await socket.close()
                return
            await next_stir(stirred)

    # ── a state to begin from ────────────────────────────────────────────────────────────────────────────────────

    @property
    def find(self) -> Find | None:
        """What the search has brought, for the training thread to look at."""
        return None if self.recovering is None else self.recovering.find

    def _begin_search(self, wanted: Recover) -> None:
        """In the loop of this thread: a Welcome has brought it about."""
        frame = self.welcome
        assert frame is not None and self.recovering is None
        if self._leads or isinstance(self.address, MailboxAddress):
            # A peer's state would have to be cut as this learner is; and where nobody listens, no peer is reached.
            wanted = replace(wanted, donors=())
        core, stall_s = self.core, self._http.stall_s

        def visit(donor: Donor) -> Visit:
            peers = self._peers
            return Visit(
                donor.address,
                learner=core.learner,
                session=core.session,
                token=self._token,
                stall_s=stall_s,
                fits=self._fits,
                tls=None if peers is None else peers.as_guest_of(donor.learner),
            )

        def published() -> tuple[Version, ...]:
            with self.news:
                return core.published

        self.recovering = Recovering(
            wanted,
            has_own=self._has_own,
            visit=visit,
            identity={
                "run_id": frame.welcome.run_id,
                "layout_hash": core.layout_hash,
                "fragmentation_hash": frame.fragmentation_hash,
            },
            published=published,
            clock=self.clock,
            changed=self._tell,
        )
        self._search = asyncio.create_task(self._recovering_to_its_end(self.recovering))

    async def _recovering_to_its_end(self, recovering: Recovering) -> None:
        try:
            await recovering.search()
        except Exception as wrong:  # our mistake: the learner would wait for ever
            log.exception("the search for a state ended by a defect")
            self._fail(ConnectionLost(f"the search for a state ended by a defect ({type(wrong).__name__}: {wrong})"))

    def _tell(self) -> None:
        with self.news:
            self.news.notify_all()

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _welcomed(self, frame: WelcomeFrame, *, opens: bool) -> None:
        """``opens``: it opens a connection. Another on the same one asks this learner for its initial weights now."""
        for way, codec, known in (("uplink", frame.uplink, CODECS), ("downlink", frame.downlink, DOWNLINKS)):
            if codec not in known:
                raise ProtocolError(f"the syncer's {way} encoding is {codec!r}, which this version does not know")
        if frame.shard != str(self.shard):
            raise ProtocolError(
                f"{self.address} is shard {frame.shard}, not {self.shard}; start all shards of a run with one RUN.toml"
            )
        if self.welcome is None:
            parts = frame.to_fragmentation(self._layout)
            self.transfers.cut(parts, CODECS[frame.uplink], DOWNLINKS[frame.downlink])
            with self.news:
                self._tensors.cut(parts, frame.welcome.apply)
        elif frame.fragmentation_hash != self.welcome.fragmentation_hash:
            raise ProtocolError(f"{self.address} now cuts the model differently; start this learner again")
        with self.news:
            first = self.welcome is None
            self.welcome, self.trouble, self._knows_shards = frame, "", True
            self.seed_wanted = False  # an older Welcome may have asked, and nobody have looked since
            if self.core.is_newborn(frame.welcome):
                self.backlog.new_life()
            self.reconnects += opens and not first
            self._also(Welcomed(frame=frame, address=str(self.address)))
            self._step(frame.welcome)
        if first:
            self._heartbeats = self._dial_heart(period_s=frame.liveness_s / HEARTBEATS_A_LEASE)
            self._heartbeats.start()
        elif opens:
            log.info("connected to %s again, at round %d", self.address, frame.welcome.round)

    def _refused(self, refusal: Refusal) -> None:
        with self.news:
            self._step(refusal)
        self._fail(Refused(refusal.reason.value, refusal.text))

    def _fail(self, failure: GruppettoError) -> None:
        with self.news:
            self.failure, self.trouble = failure, str(failure)
            self.news.notify_all()

    def _lost(self, why: GruppettoError | None, *, again: bool) -> None:
        """``again``: the connection before this one did not last either."""
        if why is None:
            return
        # A syncer of another version, or with another token, comes after one that has stopped: that is news once more.
        unsaid = str(why) not in self._mendable and len(self._mendable) < MAX_MENDABLE
        differs = isinstance(why, NotAccepted | AddressError) and unsaid
        if differs:
            self._mendable.add(str(why))
        with self.news:
            is_news, self.trouble = differs or not self.trouble, str(why)
            self.news.notify_all()
        if is_news and self.welcome is not None:
            quiet = again and not differs
            who = "" if self.shard.is_whole else f"shard {self.shard}: "
            log.log(logging.DEBUG if quiet else logging.WARNING, "%s%s; training goes on, dialling again", who, why)

    def _step(self, event: LearnerEvent) -> None:
        """Take one event to the core, with the lock held."""
        self.perform(self.core.step(self.clock.now(), event))
        self.news.notify_all()

    def _complain(self, frame: Frame) -> None:
        """What became of a contribution that was not taken as it is, and what to do; rarer and rarer."""
        match frame:
            case Rejection(reason=reason):
                text = (
                    f"round {frame.round}, fragment {frame.fragment} was not merged: {reason.value}: {ADVICE[reason]}"
                )
                self._complaints.note(("not merged", reason.value), text, _level(reason in ROUTINE))
            case Clipping(cause=cause):
                text = (
                    f"round {frame.round}, fragment {frame.fragment} was merged for less than it holds: {cause.value}, "
                )
                text += f"{frame.factor:.3g} times the usual: {CLIP_ADVICE[cause]}"
                self._complaints.note(("clipped", cause.value), text)
            case _:
                pass

    def _came(self, fragment: Fragment, version: Version, values: Lease) -> None:
        """A fragment is here; the lock is held."""
        self._tensors.arrive(fragment, version, values)
        if self._leads:
            self.news.notify_all()  # the core hears of it when all ranks have their part
        else:
            self._step(Arrived(fragment=fragment, version=version))

    def _taken(self, answer: Answer, tokens: int) -> None:
        """The syncer has taken a contribution; the lock is held."""
        if self.on_taken is not None:
            self.on_taken(answer, tokens)  # the core hears of it when all ranks have said what they have heard
            return
        self._step(Taken(epoch=answer.epoch, round=answer.round, fragment=answer.fragment, tokens=tokens))

    def _is_over(self, answer: Answer) -> bool:
        core = self.core
        return core.newest_round >= answer.round or (core.epoch, core.incarnation) != (answer.epoch, answer.incarnation)

    def _heartbeat(self) -> Heartbeat | None:
        if not self.core.linked:
            return None
        return Heartbeat(learner=self.core.learner, incarnation=Incarnation(self.core.incarnation))

    def _stir(self) -> None:
        """Let the loop look at the backlog again. From any thread."""
        self._in_loop(self.transfers.stirs.all)

    def _in_loop(self, call: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(call)


def _always() -> bool:
    return True


def _alone(order: RankOrder) -> None:
    pass


def _level(routine: bool) -> int:
    return logging.INFO if routine else logging.WARNING


async def until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends or fails; end the others; raise what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
