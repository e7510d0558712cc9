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
PATIENCE_S = 3600.0
"""For the next order."""
JOIN_S = 2.0
"""For the thread to end. It is a daemon, and holds nothing."""
END = b""
"""In place of an order: no more will come."""


class Outgoing:
    """Rank 0's end. ``store`` None: nothing is sent."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
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
        """Say that no more will come."""
        self._waiting.put(END)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        number = 0
        try:
            while True:
                order = self._waiting.get()
                self._store.set(_key(self._name, number), order)
                if order == END:
                    return
                if number >= KEPT:
                    with suppress(NotImplementedError):  # a store of files keeps everything
                        self._store.delete_key(_key(self._name, number - KEPT))
                number += 1
        except Exception as wrong:  # the store has gone: what is in the words is enough
            log.debug("no orders are sent ahead any more (%s)", wrong)


class Incoming:
    """Another rank's end: ``deliver`` is called with each order, in a thread of its own.

    ``store`` is what that thread waits at; ``bell`` another connection to it.
    """

    def __init__(self, store: Any, bell: Any, name: str, deliver: Callable[[bytes], None]) -> None:
        self._store, self._bell, self._name, self._deliver = store, bell, name, deliver
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
        """End the thread: it is given the end that it waits for. A learner that loses a rank ends, so the others may
        see it too."""
        self._closing = True
        if self._thread.is_alive():
            with suppress(Exception):  # the store has gone, and the thread is about to
                self._bell.set(_key(self._name, self._next), END)
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._closing:
            number = self._next
            key = _key(self._name, number)
            try:
                self._store.wait([key], timedelta(seconds=PATIENCE_S))
                order = self._store.get(key)
            except Exception as wrong:  # nothing has come, or the store has gone: what is in the words is enough
                log.debug("no orders come ahead any more (%s)", wrong)
                return
            if order == END:
                return
            self._next = max(self._next, number + 1)
            self._deliver(order)


def _key(name: str, number: int) -> str:
    return f"gruppetto/{name}/{number}"
