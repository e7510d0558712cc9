"""The other ranks of a learner: they do what rank 0 says, at the same step, and decide nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gruppetto.attach.channel import Incoming
from gruppetto.attach.conduct import NOBODY, Standing
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.lead import both
from gruppetto.attach.ranks import Ranks
from gruppetto.attach.taking import Taking
from gruppetto.errors import RunFailed
from gruppetto.protocol.actions import Apply, DropRests, KeepRest, Pull, Seed, TakeSnapshot
from gruppetto.protocol.events import LinkDown
from gruppetto.protocol.learner import FragmentState, LearnerCore
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.backlog import SeedPart
from gruppetto.runtime.orders import (
    Begin,
    DropCut,
    Fetch,
    GiveCut,
    Keep,
    PutBases,
    RankOrder,
    SavePart,
    Welcomed,
    Word,
    decode_order,
    decode_word,
)
from gruppetto.runtime.rank_client import RankClient

__all__ = ["Follow"]

log = logging.getLogger("gruppetto.learner")


class Follow:
    """One rank behind rank 0. ``begin`` is called with what the learner begins from; ``notice`` says whether this rank
    is to leave; ``save`` saves its part of a checkpoint of the whole run; ``taking`` fetches its part of what a peer
    gives. :attr:`cut` is the cut of which it is to give its portion at the end of this boundary, "" if there is none.
    """

    def __init__(
        self,
        ranks: Ranks,
        core: LearnerCore,
        holdings: Holdings,
        client: RankClient,
        *,
        begin: Callable[[Begin], None],
        notice: Callable[[], bool],
        save: Callable[[str], object] | None,
        taking: Taking,
    ) -> None:
        self._ranks, self._core, self._holdings, self.client = ranks, core, holdings, client
        self._begin, self._notice, self._save, self._taking = begin, notice, save, taking
        self.cut = ""
        self._next = 0
        self._early: dict[int, bytes] = {}
        self._fragments = 0
        self.word: Word | None = None
        self._channel = Incoming(ranks.store(), ranks.store(), core.session, self._ahead)

    def start(self) -> None:
        """Listen to what is sent ahead."""
        self._channel.start()

    def through(self, *, loops: bool = True, failed: bool = False) -> Word:
        """Follow rank 0 from this boundary until it lets go. Raises :class:`RunFailed` when the learner ends."""
        word = self._boundary(loops=loops, failed=failed)
        while word.again:
            word = self._boundary(loops=loops, failed=False)
        return word

    def close(self) -> None:
        """This rank leaves."""
        self._channel.close()
        self._taking.close()
        self._ranks.close()

    def _boundary(self, *, loops: bool, failed: bool) -> Word:
        client, inbox = self.client, self._holdings.inbox
        assert inbox is not None
        failed = failed or client.failure is not None
        fetched, lacks = self._taking.standing
        with client.news:
            own = Standing(
                fetched=fetched,
                lacks=lacks,
                failed_rank=self._ranks.rank if failed else NOBODY,
                stays=not self._notice(),
                loops=loops,
                settled=not client.backlog.downloads and not len(inbox),
                idle=not client.backlog.uploads,
            )
            versions = inbox.report() if self._fragments else []
            taken = self._holdings.receipts.report(self._fragments)
        self._ranks.lowest(own.numbers() + both(versions) + taken)
        word = decode_word(self._ranks.hear())
        with client.news:
            self._mirror(word)
            for number, data in enumerate(word.orders, word.first):
                self._carry_out(number, data)
            self._channel.skip_to(word.sent_ahead)
            self._catch_up()
        self.word = word
        if word.failure:
            raise RunFailed(f"rank 0 of {self._core.learner} has ended this learner: {word.failure}")
        return word

    def _ahead(self, message: bytes) -> None:
        """An order that was sent ahead."""
        number = int.from_bytes(message[:8], "little")
        with self.client.news:
            if number == self._next:
                self._carry_out(number, message[8:])
                self._catch_up()
            elif number > self._next:
                self._early[number] = message[8:]

    def _catch_up(self) -> None:
        while self._next in self._early:
            self._carry_out(self._next, self._early.pop(self._next))
        self._early = {number: data for number, data in self._early.items() if number > self._next}

    def _carry_out(self, number: int, data: bytes) -> None:
        """Each order once, in their order; the lock is held."""
        if number < self._next:
            return
        assert number == self._next, "a word holds all that has not been in one"
        self._next += 1
        self._do(decode_order(data))

    def _do(self, order: RankOrder) -> None:
        match order:
            case Welcomed() | LinkDown() | Pull() | Answer():
                self.client.do(order)
            case Seed():
                self._holdings.model.check_finite()
                for p in range(self._holdings.model.num_fragments):
                    part = SeedPart(fragment=Fragment(p), theta=self._holdings.seed_part(Fragment(p)))
                    self.client.backlog.seed(part)
                self.client.stir()
            case Keep():
                self._holdings.keep(order.fragment, order.version)
            case Apply():
                self._holdings.apply(order)
            case KeepRest():
                self._holdings.keep_rest(order)
            case DropRests():
                self._holdings.drop_rests()
            case TakeSnapshot():
                self._holdings.take_snapshots(order.fragments)
            case Begin():
                self._begin(order)
            case Fetch():
                self._taking.fetch(order)
            case GiveCut():
                self.cut = order.name
            case DropCut():
                if self.client.donations is not None:
                    self.client.donations.drop(order.name)
            case SavePart():
                self._save_part(order.mark)
            case PutBases():
                self._holdings.put_bases()

    def _save_part(self, mark: str) -> None:
        """What goes wrong is said; rank 0 then waits in vain, and the checkpoint does without this learner."""
        if self._save is not None:
            try:
                self._save(mark)
            except Exception as wrong:
                log.warning("%s: no part of checkpoint %s: %s", self._core.learner, mark, wrong)

    def _mirror(self, word: Word) -> None:
        """The core's picture, for all that looks at it."""
        core, state = self._core, word.state
        core.run_id, core.epoch, core.incarnation = state.run_id, state.epoch, state.incarnation
        core.clock, core.newest_round, core.rounds = state.clock, state.newest_round, word.rounds
        core.slot, core.cursor, core.steps, core.tokens = state.slot, state.cursor, state.steps, state.tokens
        core.linked, core.begun, core.finished = word.linked, word.begun, word.finished
        core.step_s = word.step_s
        core.fragments = [
            FragmentState(version=v, from_steps=state.steps - steps, from_tokens=state.tokens - tokens)
            for v, steps, tokens in state.fragments
        ]
        self._fragments = word.fragments
