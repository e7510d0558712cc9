"""Orders sent ahead: in the middle of a step, from rank 0 to the others, through the group's key-value store.

An answer is asked for at any time, and is worth most at once. Nothing depends on this: every order is said again in the
word that ends the boundary. So whatever fails here is forgotten, and what a slow rank has not read goes away.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

__all__ = ["Incoming", "Outgoing"]

log = logging.getLogger("gruppetto.learner")

KEPT = 256
"""Orders in the store at a time."""
LOOK_S = 0.5
"""A rank that waits for the next order looks as often whether it is to stop."""


class Outgoing:
    """Rank 0's end. ``store`` None: nothing is sent."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.sent = 0
        """So many have been handed over."""
        self._thread = threading.Thread(target=self._run, name="gruppetto-learner-orders", daemon=True)

    def start(self) -> None:
        if self._store is not None:
            self._thread.start()

    def put(self, order: bytes) -> None:
        """Send; returns at once."""
        if self._store is not None:
            self.sent += 1
            self._waiting.put(order)

    def close(self) -> None:
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        number = 0
        try:
            while (order := self._waiting.get()) is not None:
                self._store.set(_key(self._name, number), order)
                if number >= KEPT:
                    with suppress(NotImplementedError):  # a store of files keeps everything
                        self._store.delete_key(_key(self._name, number - KEPT))
                number += 1
        except Exception as wrong:  # the store has gone: what is in the words is enough
            log.debug("no orders are sent ahead any more (%s)", wrong)


class Incoming:
    """Another rank's end: ``deliver`` is called with each order, in a thread of its own."""

    def __init__(self, store: Any, name: str, deliver: Callable[[bytes], None]) -> None:
        self._store, self._name, self._deliver = store, name, deliver
        self._next = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gruppetto-learner-orders", daemon=True)

    def start(self) -> None:
        if self._store is not None:
            self._thread.start()

    def skip_to(self, sent: int) -> None:
        """All before these have come another way."""
        self._next = max(self._next, sent)

    def close(self) -> None:
        self._closing = True
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            number = self._next
            key = _key(self._name, number)
            try:
                self._store.wait([key], timedelta(seconds=LOOK_S))
                order = self._store.get(key)
            except Exception as wrong:
                if "timeout" in str(wrong).lower() or type(wrong).__name__ == "DistStoreError":
                    continue  # nothing has been sent
                log.debug("no orders come ahead any more (%s)", wrong)
                return
            self._next = max(self._next, number + 1)
            self._deliver(order)


def _key(name: str, number: int) -> str:
    return f"gruppetto/{name}/{number}"
