"""Rank 0 of a learner of many ranks: it has the core, and tells the others what its decisions come to.

A boundary begins with :meth:`Lead.meet`, where every rank says how it stands, and ends with the word that all of them
hear. While rank 0 waits for something, one boundary follows another: so everybody knows that everybody is there.
"""

from __future__ import annotations

from collections.abc import Callable

from gruppetto.attach.channel import Outgoing
from gruppetto.attach.conduct import GOES_ON, LENGTH, NOBODY, Conduct, Ends, Report, Standing
from gruppetto.attach.hands import Hands
from gruppetto.attach.inbox import ANY, NONE
from gruppetto.attach.ranks import Ranks
from gruppetto.errors import Refused, RunFailed
from gruppetto.protocol.actions import Apply, DropRests, KeepRest, Pull, SaveState, TakeSnapshot
from gruppetto.protocol.events import Arrived, LearnerEvent, Taken
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.orders import SWIFT, Keep, RankOrder, SavePart, Welcomed, Word, encode_order, encode_word

__all__ = ["Lead", "both"]

POLL_S = 0.05
"""While rank 0 waits, two boundaries are no further apart."""


class Lead(Conduct):
    """What rank 0 keeps of the boundaries. All methods but :meth:`order` belong to the training thread."""

    poll_s = POLL_S

    def __init__(self, ranks: Ranks, core: LearnerCore) -> None:
        self._ranks, self._core = ranks, core
        self._channel = Outgoing(ranks.store(), core.session)
        self._orders: list[bytes] = []
        self._done = 0
        """Orders that are in a word."""
        self._fragments = 0
        """As all ranks know them: those of the Welcome that has been in a word."""
        self._welcomed = False
        self._open = False
        self.word: Word | None = None
        """The last one: how the learner stands, as all ranks see it."""
        self._hands: Hands

    def serve(self, hands: Hands) -> None:
        """Said once, before anything else."""
        self._hands = hands
        hands.client.on_taken = hands.holdings.receipts.taken
        self._channel.start()

    def order(self, order: RankOrder, *, ahead: bool = True) -> None:
        """All other ranks are to do this too; the lock is held. ``ahead``: the next word may be a step away."""
        data = encode_order(order)
        self._welcomed = self._welcomed or isinstance(order, Welcomed)
        if ahead and isinstance(order, SWIFT):
            number = self._done + len(self._orders)
            self._channel.put(number.to_bytes(8, "little") + data)
        self._orders.append(data)

    def meet(self, *, loops: bool = True) -> Report:
        """Begin a boundary, after the one before: hear how all ranks stand, and tell the core what has come to all."""
        client = self._hands.client
        if self._open:
            self.release(again=lambda: True)
        with client.news:
            own = Standing(
                loops=loops,
                settled=not client.backlog.downloads and not self._waiting,
                idle=not client.backlog.uploads,
            )
            versions, taken = self._report(), self._hands.holdings.receipts.report(self._fragments)
            numbers = own.numbers() + both(versions) + taken
        lowest = self._ranks.lowest(numbers)
        self._open = True
        report = Report.of(lowest[:LENGTH])
        with client.news:
            if client.companions is not None:
                client.companions.heard(report.fetched, report.lacks)
            for p, version in enumerate(_agreed(lowest[LENGTH : LENGTH + 2 * len(versions)])):
                if version is not None:
                    self._keep(Fragment(p), version)
            for answer in self._hands.holdings.receipts.heard(lowest[LENGTH + 2 * len(versions) :]):
                self._hands.feed(
                    Taken(epoch=answer.epoch, round=answer.round, fragment=answer.fragment, tokens=answer.tokens)
                )
        if 0 < report.failed_rank < NOBODY:
            raise RunFailed(_failed(self._core.learner, report.failed_rank))
        return report

    def release(self, *events: LearnerEvent, again: Callable[[], bool] | None = None, ends: Ends = GOES_ON) -> bool:
        """The same, with the word that tells all ranks what comes of it: they do it too."""
        client, core = self._hands.client, self._core
        if not self._open:
            return False
        with client.news:
            actions = [action for event in events for action in self._hands.decide(event)]
            for action in actions:
                if isinstance(action, Apply | TakeSnapshot | Answer | Pull | KeepRest | DropRests):
                    self.order(action, ahead=False)
                elif isinstance(action, SaveState):
                    self.order(SavePart(mark=action.mark), ahead=False)
            if self._welcomed:
                self._fragments = self._hands.holdings.model.num_fragments
            refusal = client.failure if isinstance(client.failure, Refused) else None
            word = Word(
                first=self._done,
                orders=tuple(self._orders),
                fragments=self._fragments,
                sent_ahead=self._channel.sent,
                again=again is not None and again(),
                state=core.snapshot(),
                rounds=core.rounds,
                step_s=core.step_s,
                linked=core.linked,
                begun=core.begun,
                finished=core.finished,
                parted=ends.parted,
                closing=ends.closing,
                failure=ends.failure,
                refusal=None if refusal is None else (refusal.reason, refusal.text),
                waiting_for=client.waiting_for,
            )
            self._done += len(self._orders)
            self._orders.clear()
            self._open, self.word = False, word
            self._ranks.tell(encode_word(word))
            self._hands.carry_out(actions, told=True)
        return word.again

    def close(self, failure: str) -> None:
        try:
            if not self._open and self.word is not None and self.word.again:
                self.meet()
            self.release(ends=Ends(failure=failure or "it has left"))
        except RunFailed:
            pass  # nobody is there to hear it
        finally:
            self._channel.close()
            self._ranks.close()

    @property
    def _waiting(self) -> int:
        inbox = self._hands.holdings.inbox
        return 0 if inbox is None else len(inbox)

    def _report(self) -> list[int]:
        inbox = self._hands.holdings.inbox
        assert inbox is not None
        return inbox.report() if self._fragments else []

    def _keep(self, fragment: Fragment, version: Version) -> None:
        self.order(Keep(fragment=fragment, version=version))
        self._hands.holdings.keep(fragment, version)
        self._hands.feed(Arrived(fragment=fragment, version=version))


def both(versions: list[int]) -> list[int]:
    """So that the lowest of all ranks' tell both the lowest and the highest version."""
    return versions + [ANY if version == ANY else -version for version in versions]


def _agreed(lowest: list[int]) -> list[Version | None]:
    """The version of each fragment that every rank has its part of; None where they differ."""
    half = len(lowest) // 2
    pairs = zip(lowest[:half], lowest[half:], strict=True)
    return [Version(low) if low == -high and low not in (NONE, ANY) else None for low, high in pairs]


def _failed(name: str, rank: int) -> str:
    return f"rank {rank} of {name} has failed; its own output says why, and all of its ranks end"
