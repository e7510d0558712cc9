"""A rank that has left its loop while the others train on: neither side can end, which is found out and ends both.

The loop's own collectives (the gradients' sum, a gathered parameter) wait for the rank that is gone, which waits for
the others at the next boundary. So a rank that leaves first asks, through the group's key-value store, where the others
are, and comes to the boundary when they are at one. Whoever is in the middle of a step all the while waits in vain: the
rank that has left fails, and with it, as with any dead rank, all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from gruppetto.errors import RunFailed
from gruppetto.runtime.clock import Clock

__all__ = ["Whereabouts"]

log = logging.getLogger("gruppetto.learner")

BETWEEN, TRAINS, WAITS, LEAVES = "between", "trains", "waits", "leaves"
"""Between two steps; in a step, which takes all ranks; at a boundary; behind the loop."""

DESERTED_S = 8.0
"""So long another rank may be in a step that began without the one that has left; two usual steps, if that is more: it
may be behind with gradients that nobody will need."""
ANSWER_S = 5.0
"""For the others to say where they are; who says nothing is not waited for here."""
LOOK_S = 0.1
FIRST_LOOK_S = 0.005
PATIENCE_S = 600.0
"""For somebody who is between two steps: rank 0 may evaluate. As long as a boundary waits."""
ALL_DAY_S = 86400.0
JOIN_S = 2.0


class Whereabouts:
    """Where this rank is, told to who asks. ``store`` gives a connection of its own each time, or None: then nobody is
    asked, and nothing is told. All methods belong to the training thread."""

    def __init__(self, store: Callable[[], Any], session: str, *, rank: int, size: int, clock: Clock) -> None:
        self._answering, self._asking = store(), store()
        self._name, self._rank, self._size, self._clock = f"gruppetto/{session}", rank, size, clock
        self._at, self._boundaries = WAITS, 0
        self._closing = threading.Event()
        self.deserted = ""
        """Why a rank that had left has failed, once it is known."""
        self._thread = threading.Thread(target=self._answer, name="gruppetto-learner-whereabouts", daemon=True)

    def start(self) -> None:
        if self._answering is not None and self._asking is not None:
            self._thread.start()

    def between(self) -> None:
        """A boundary is behind it, and the loop goes on."""
        self._at = BETWEEN

    def trains(self) -> None:
        """A pass to be trained on has begun."""
        if self._at == BETWEEN:
            self._at = TRAINS

    def waits(self) -> None:
        """It has come to a boundary."""
        self._boundaries += 1
        self._at = WAITS

    def leave(self, *, step_s: float) -> None:
        """This rank has left its loop: wait until all others are at a boundary, or leave too. Raises
        :class:`RunFailed` if one of them is in a step that cannot end; ``step_s`` is what one usually takes."""
        self._at = LEAVES
        if not self._thread.is_alive():
            return
        try:
            self._asking.set(self._key("leaves"), "")
            self._wait_for_others(max(DESERTED_S, 2 * step_s))
        except RunFailed:
            raise
        except Exception as wrong:  # the store has gone: the boundary will show who has
            log.debug("where the other ranks are is not known (%s)", wrong)

    def close(self) -> None:
        """End the thread. A learner that loses a rank ends, so the others may wake up too."""
        self._at = LEAVES
        self._closing.set()
        if self._thread.is_alive():
            with suppress(Exception):  # the store has gone, and the thread is about to
                self._asking.set(self._key("leaves"), "")
            self._thread.join(JOIN_S)

    def _wait_for_others(self, deserted_s: float) -> None:
        began, look_s = self._clock.now(), FIRST_LOOK_S
        training_since: dict[int, float] = {}
        while (now := self._clock.now()) - began < PATIENCE_S:
            at = {rank: self._where_is(rank) for rank in range(self._size) if rank != self._rank}
            training_since = {r: training_since.get(r, now) for r, where in at.items() if where == TRAINS}
            for rank, since in training_since.items():
                if now - since > deserted_s:
                    self._fail(rank)
            if all(
                where in ((WAITS, LEAVES, "") if now - began > ANSWER_S else (WAITS, LEAVES)) for where in at.values()
            ):
                return
            self._closing.wait(look_s)
            look_s = min(LOOK_S, 2 * look_s)

    def _fail(self, other: int) -> None:
        why = (
            f"rank {self._rank} of this learner has left its loop, and rank {other} trains on, which it cannot alone; "
            "all ranks end: they have to take equally many steps, so give them equally much data"
        )
        self._asking.set(self._key("deserted"), why)
        self._closing.wait(3 * LOOK_S)  # this process may hold the store
        raise RunFailed(why)

    def _answer(self) -> None:
        store, said, look_s = self._answering, "", FIRST_LOOK_S
        try:
            store.wait([self._key("leaves")], timedelta(seconds=ALL_DAY_S))
            closing = False
            while not closing:
                closing = self._closing.wait(look_s)  # the last thing that is said is that it leaves
                if (now := f"{self._boundaries} {self._at}") != said:
                    store.set(self._key(f"at/{self._rank}"), said := now)
                if not self.deserted and store.check([self._key("deserted")]):
                    self.deserted = store.get(self._key("deserted")).decode()
                look_s = min(LOOK_S, 2 * look_s)
        except Exception as wrong:  # the store has gone
            log.debug("where this rank is is not told any more (%s)", wrong)

    def _where_is(self, rank: int) -> str:
        """ "" if it has not said. A boundary that this rank has been through itself is none to meet at."""
        key = self._key(f"at/{rank}")
        if not self._asking.check([key]):
            return ""
        boundaries, _, where = self._asking.get(key).decode().partition(" ")
        return BETWEEN if where == WAITS and int(boundaries) <= self._boundaries else where

    def _key(self, what: str) -> str:
        return f"{self._name}/{what}"
