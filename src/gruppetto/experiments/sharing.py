"""What is left to make, among all the processes that were asked for the same.

A process takes a ride (:mod:`gruppetto.experiments.claims`), makes it, and appends what came of it; then it takes the
next one that is neither made nor taken. When only others' rides are left it waits for them, so that everybody ends with
the whole table. Whoever dies leaves its rides to the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gruppetto.experiments.claims import Claims, this_machine
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result, Store

__all__ = ["Shared", "claims_beside"]

POLL_S = 1.0
_THE_FILE = "results"
_ALONE = "alone-on-"


def claims_beside(store: Path) -> Path:
    """Where the claims on rides of a store are."""
    return store.with_suffix(".claims")


class Shared:
    """The rides that are asked for, in this order. Any thread may take, and keep.

    ``alone``: they are timed, so that of all processes on this machine one makes one at a time. ``say`` hears once
    whom we wait for. ``claims`` and ``poll_s`` are for tests.
    """

    def __init__(
        self,
        rides: Sequence[Ride],
        store: Store,
        *,
        alone: bool = False,
        say: Callable[[str], None] = lambda text: None,
        claims: Claims | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._rides, self._store, self._say = rides, store, say
        self._claims = Claims(claims_beside(store.path)) if claims is None else claims
        self._here = f"{_ALONE}{this_machine()}" if alone else ""
        self._poll_s = poll_s
        self._changed = threading.Condition()
        self._ours: set[Ride] = set()
        self._closed = False
        self._told = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """What is taken stays ours until the end of the block, and whoever waits then gets nothing more."""
        with self._claims.kept():
            try:
                yield
            finally:
                with self._changed:
                    self._closed = True
                    self._changed.notify_all()

    def left(self) -> int:
        """How many have no result yet, as far as we know."""
        return sum(ride not in self._store for ride in self._rides)

    def take(self) -> Ride | None:
        """The next one to make; waits while others make all that is left. None: nothing is left to us."""
        with self._changed:
            while not self._closed:
                self._store.look()
                open_ones = [ride for ride in self._rides if ride not in self._store and ride not in self._ours]
                if not open_ones:
                    return None
                if (ride := self._taken(open_ones)) is not None:
                    self._ours.add(ride)
                    return ride
                if not self._ours:
                    self._tell(open_ones)
                self._changed.wait(self._poll_s)
        return None

    def keep(self, ride: Ride, result: Result, *, took_s: float) -> None:
        """Add what came of a ride of ours to the store. Raises :class:`OSError`."""
        with self._changed:
            # Two machines that append to one file of a network file system at once may overwrite each other's line.
            with suppress(OSError):  # what cannot be claimed any more is kept all the same: it may have taken hours
                while not self._claims.take(_THE_FILE):
                    self._changed.wait(self._poll_s / 10)
            self._store.add(ride, result, took_s=took_s)
            self._claims.release(_THE_FILE)
            self._claims.release(ride.hash)
            if self._here:
                self._claims.release(self._here)
            self._ours.remove(ride)
            self._changed.notify_all()

    def _taken(self, open_ones: Sequence[Ride]) -> Ride | None:
        if self._here and (self._ours or not self._claims.take(self._here)):
            return None
        for ride in open_ones:
            if self._claims.take(ride.hash):
                self._store.look()
                if ride not in self._store:
                    return ride
                self._claims.release(ride.hash)  # it was over between our look and our claim
        if self._here:
            self._claims.release(self._here)
        return None

    def _tell(self, open_ones: Sequence[Ride]) -> None:
        holders = {self._claims.holder(what) for ride in open_ones for what in (ride.hash, self._here) if what}
        who = " and ".join(sorted(holders - {""}))
        if who and who != self._told:  # of nobody: it was let go since we asked for it, and the next look takes it
            self._told = who
            what = "runs are timed, one at a time on a machine" if self._here else "another makes what is left"
            self._say(f"waits for {who}: {what} ({len(open_ones)})")
