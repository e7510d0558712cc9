"""What is left to make, among all the processes that were asked for the same.

A process takes a ride (:mod:`gruppetto.experiments.claims`), makes it, and appends what came of it; then it takes the
next one that is neither made nor taken. When only others' rides are left it waits for them, so that everybody ends with
the whole table. Whoever dies leaves its rides to the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gruppetto.experiments.budget import Budget
from gruppetto.experiments.claims import Claims, this_machine
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result, Store

__all__ = ["Asked", "Shared", "claims_beside", "work_of"]

POLL_S = 1.0
_THE_FILE = "results"
_ALONE = "alone-on-"


@dataclass(frozen=True, slots=True)
class Asked:
    """A ride, and where what comes of it is kept."""

    ride: Ride
    store: Store
    alone: bool = False
    """It is timed: nothing of ours beside it, and of all processes on this machine one makes one such at a time."""

    @property
    def is_made(self) -> bool:
        """As far as we know."""
        return self.ride in self.store


def work_of(rides: Iterable[Ride], store: Store, *, alone: bool = False) -> list[Asked]:
    """All of them for one store."""
    return [Asked(ride, store, alone) for ride in rides]


def claims_beside(store: Path) -> Path:
    """Where the claims on rides of a store are."""
    return store.with_suffix(".claims")


def _claims_of(store: Store) -> Claims:
    return Claims(claims_beside(store.path))


class Shared:
    """What is asked for, of any number of stores, in this order. Any thread may take, and keep.

    ``budget``: what it does not allow any more is left. ``say`` hears once whom we wait for. ``claims`` and ``poll_s``
    are for tests.
    """

    def __init__(
        self,
        work: Sequence[Asked],
        *,
        budget: Budget | None = None,
        say: Callable[[str], None] = lambda text: None,
        claims: Callable[[Store], Claims] = _claims_of,
        poll_s: float = POLL_S,
    ) -> None:
        self._work, self._budget, self._say = work, budget, say
        self._claims = {store: claims(store) for store in dict.fromkeys(each.store for each in work)}
        self._here = f"{_ALONE}{this_machine()}"
        self._poll_s = poll_s
        self._changed = threading.Condition()
        self._ours: set[Asked] = set()
        self._closed = False
        self._told = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """What is taken stays ours until the end of the block, and whoever waits then gets nothing more."""
        with ExitStack() as kept:
            for claims in self._claims.values():
                kept.enter_context(claims.kept())
            try:
                yield
            finally:
                with self._changed:
                    self._closed = True
                    self._changed.notify_all()

    @property
    def stores(self) -> Collection[Store]:
        """Each once."""
        return self._claims.keys()

    def left(self) -> int:
        """How many have no result yet, as far as we know."""
        return sum(not each.is_made for each in self._work)

    def is_over(self) -> bool:
        """Whether there is nothing more to take, as far as we know: all is made or being made here, or time is up."""
        with self._changed:
            return not self._open()

    def take(self) -> Asked | None:
        """The next one to make; waits while others make all that is left. None: nothing is left to us."""
        with self._changed:
            while not self._closed:
                for store in self.stores:
                    store.look()
                open_ones = self._open()
                if not open_ones:
                    return None
                if (taken := self._taken(open_ones)) is not None:
                    self._ours.add(taken)
                    return taken
                if not self._ours:
                    self._tell(open_ones)
                self._changed.wait(self._poll_s)
        return None

    def keep(self, taken: Asked, result: Result, *, took_s: float) -> None:
        """Add what came of a ride of ours to its store. Raises :class:`OSError`."""
        claims = self._claims[taken.store]
        with self._changed:
            # Two machines that append to one file of a network file system at once may overwrite each other's line.
            with suppress(OSError):  # what cannot be claimed any more is kept all the same: it may have taken hours
                while not claims.take(_THE_FILE):
                    self._changed.wait(self._poll_s / 10)
            taken.store.add(taken.ride, result, took_s=took_s)
            claims.release(_THE_FILE)
            claims.release(taken.ride.hash)
            claims.release(self._here)
            self._ours.remove(taken)
            if self._budget is not None:
                self._budget.made(taken.ride, took_s=took_s)
            self._changed.notify_all()

    def _open(self) -> list[Asked]:
        """What could be begun: nobody has made it, we are not making it, and there is time for it."""
        left = (each for each in self._work if not each.is_made and each not in self._ours)
        return [each for each in left if self._budget is None or self._budget.allows(each.ride)]

    def _taken(self, open_ones: Sequence[Asked]) -> Asked | None:
        if any(each.alone for each in self._ours):
            return None
        for each in open_ones:
            claims = self._claims[each.store]
            if each.alone:
                if self._ours:
                    return None  # its turn comes when those are over; what comes after it would keep it waiting
                if not claims.take(self._here):
                    continue
            if claims.take(each.ride.hash):
                each.store.look()
                if not each.is_made:
                    return each
                claims.release(each.ride.hash)  # it was over between our look and our claim
            claims.release(self._here)
        return None

    def _tell(self, open_ones: Sequence[Asked]) -> None:
        holders, timed = set[str](), False
        for each in open_ones:
            holders.add(self._claims[each.store].holder(each.ride.hash))
            if each.alone:
                timed = True
                holders.add(self._claims[each.store].holder(self._here))
        who = " and ".join(sorted(holders - {""}))
        if who and who != self._told:  # of nobody: it was let go since we asked for it, and the next look takes it
            self._told = who
            what = "runs are timed, one at a time on a machine" if timed else "another makes what is left"
            self._say(f"waits for {who}: {what} ({len(open_ones)})")
