"""What a learner's client has in hand, what it takes to the core, and what it does for it."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from gruppetto.errors import AddressError, GruppettoError
from gruppetto.numerics.deal import Shard
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.actions import DropRests, KeepRest, LearnerAction, Pull, Recover, Seed
from gruppetto.protocol.events import Arrived, LearnerEvent, Taken
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer, Deferred, Heartbeat, Marked, Progress
from gruppetto.protocol.units import Fragment, Incarnation, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import AddressBook, Fixed
from gruppetto.runtime.backlog import Backlog
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.companions import Companions
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.control_socket import NotAccepted
from gruppetto.runtime.donation import Manifest
from gruppetto.runtime.donor import DonationServer
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.line import Heart, heart_of, line_to
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.orders import RankOrder
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.recovering import Recovering
from gruppetto.runtime.security.fresh import PeerTls
from gruppetto.runtime.seeking import Seeking
from gruppetto.runtime.shard_books import Shards
from gruppetto.runtime.spans import Needs, everything
from gruppetto.runtime.transfers import Tensors, Transfers
from gruppetto.runtime.wire import WelcomeFrame

__all__ = ["DIAL_S", "Beside", "ClientStanding"]

log = logging.getLogger("gruppetto.learner")

DIAL_S = 5.0
"""For one of several addresses: a host that is gone answers nothing at all, and another one may."""
MAX_MENDABLE = 16
"""Different lines about what a person can mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What the client of another shard of the run has from the first one's: its lock, and the map."""

    shards: Shards
    number: int
    news: threading.Condition
    may_seed: Callable[[], bool]
    """The first weights of all shards are to be one learner's, as long as there is one that gives them."""
    pace: Bucket | None
    """What goes up to all shards together is held to one rate: it leaves by one link."""


class ClientStanding:
    """A client between two events. :class:`~gruppetto.runtime.client.LearnerClient` says what its arguments mean."""

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
        needs: Callable[[Manifest], Needs] = everything,
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
        if beside is not None:
            self._http.pace = beside.pace
        elif max_bytes_per_s is not None:
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
                *donates,
                token=token,
                stall_s=stall_s,
                core=core,
                tls=None if peers is None else peers.as_donor(),
                counts=self._http.counts if peers is not None and isinstance(self._http, HttpSyncer) else None,
                pace=self._http.pace,
            )
        self.companions = None if also is None else Companions(also, self.news)
        """Of many ranks: the others, while a state is fetched."""
        self._seeking = Seeking(
            core,
            self.news,
            self.clock,
            has_own=has_own,
            token=token,
            fits=fits,
            peers=peers,
            fail=self._fail,
            needs=needs,
            companions=self.companions,
        )
        self._dial_heart = partial(heart_of, self._http, self._heartbeat, token=token, tls=tls)
        if several:
            self._dial_heart = partial(self._dial_heart, on_silence=lambda: self._in_loop(self._silence.set))
        self._complaints = Complaints(log)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._closing, self._last_words = False, ""
        self._thread = threading.Thread(target=self._run, name="gruppetto-learner", daemon=True)

    @property
    def address(self) -> SyncerAddress:
        """The one in use, or being dialled."""
        return self._http.address

    @property
    def pace(self) -> Bucket | None:
        """What bodies go up at, at most; None: as fast as they can."""
        return self._http.pace

    @property
    def recovering(self) -> Recovering | None:
        """The search for a state to begin from, the only one of this process."""
        return self._seeking.recovering

    # ── for the core ─────────────────────────────────────────────────────────────────────────────────────────────

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

    def _begin_search(self, wanted: Recover) -> None:
        frame = self.welcome
        assert frame is not None
        if isinstance(self.address, MailboxAddress):  # where nobody listens, no peer is reached
            wanted = replace(wanted, donors=())
        self._seeking.begin(wanted, frame, stall_s=self._http.stall_s)

    # ── to the core ──────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, event: LearnerEvent) -> None:
        """Take one event to the core, with the lock held."""
        self.perform(self.core.step(self.clock.now(), event))
        self.news.notify_all()

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

    # ── when something is wrong ──────────────────────────────────────────────────────────────────────────────────

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

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        """Until it is closed, or has failed."""
        raise NotImplementedError

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
