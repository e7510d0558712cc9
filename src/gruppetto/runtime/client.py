"""A learner's link to its syncer: one thread, one event loop, no waiting in the training loop.

Two threads step the core, one at a time under :attr:`LearnerClient.news`: the training thread with its steps, this
one with everything that comes from the network. The lock is held while the core decides and, at a boundary, while
parameters are copied; never while bytes are encoded or moved. Heartbeats have a third thread.

A lost connection is dialled again for ever, with growing pauses. What was under way is then dropped: the Welcome
brings everything up to date. Only a lost connection: when the syncer does not accept what this learner says, saying it
again on another connection changes nothing, and the client rests.

One class in three files: :mod:`~gruppetto.runtime.client_standing` (what it has in hand, what it does for the core),
:mod:`~gruppetto.runtime.session` (one connection), and this one: the thread, and where it dials.
"""

from __future__ import annotations

import asyncio
import logging

from gruppetto.errors import AddressError, ConnectionLost, GruppettoError, ProtocolError, SettingError, StateError
from gruppetto.numerics.deal import Shard
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.client_standing import DIAL_S, Beside
from gruppetto.runtime.recovering import Find
from gruppetto.runtime.redial import Redial
from gruppetto.runtime.session import Session
from gruppetto.runtime.shard_books import ShardBook, Shards

__all__ = ["Beside", "LearnerClient"]

log = logging.getLogger("gruppetto.learner")


class LearnerClient(Session):
    """Keeps ``core`` in touch with the syncer at ``address``, or at the first of several at which one serves the run;
    a book is looked up before every dialling.

    ``stall_s`` is how long a transfer may stand still. :attr:`news` is the lock around the core, and is notified
    whenever something has changed. :attr:`failure` is what a person has to mend, or a refusal; after either the client
    rests. ``donates``: HOST and port at which this learner gives its state to others. ``has_own``: it has saved a state
    itself, should nobody give one. ``peers``: what learners show each other. ``also``: what concerns the other ranks of
    this learner, of which this is rank 0, in the order in which they have to do it; called with the lock held.
    ``max_bytes_per_s``: what bodies go up at, at most.
    ``beside``: it is for a shard of the run that is not the first. ``needs``: what of a peer's state is wanted here.
    """

    def start(self) -> None:
        """Begin to dial."""
        self._thread.start()

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

    # ── what it tells ────────────────────────────────────────────────────────────────────────────────────────────

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

    @property
    def find(self) -> Find | None:
        """What the search has brought, for the training thread to look at."""
        return None if self.recovering is None else self.recovering.find

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
            await self._seeking.stop()
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

    # ── where it dials ───────────────────────────────────────────────────────────────────────────────────────────

    async def _dial(self) -> None:
        redial = Redial(self._rng)
        failed = 0  # addresses in a row that are no syncer's, as far as a person can mend it
        async with self._http:
            while not self._closing:
                trouble: GruppettoError | None = None
                began = self.clock.now()
                try:
                    if not self._knows_shards:
                        await self._look_for_shards()
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
