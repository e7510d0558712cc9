"""Asking several at the same time, so that one who does not answer keeps nobody waiting for the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from gruppetto.errors import GruppettoError
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["at_once"]

Answer = TypeVar("Answer")


def at_once(asks: Mapping[str, Callable[[], Answer | None]], *, within_s: float) -> dict[str, Answer]:
    """Who has answered by then, and what. Whoever says None, or raises a :class:`GruppettoError`, has not.

    Any other error is raised here. An ask that is late goes on in a thread of its own until it gives up by itself.

    >>> at_once({"a": lambda: 1, "b": lambda: None}, within_s=60.0)
    {'a': 1}
    """
    came: queue.SimpleQueue[tuple[str, Answer | Exception | None]] = queue.SimpleQueue()

    def ask(name: str, answer: Callable[[], Answer | None]) -> None:
        try:
            came.put((name, answer()))
        except Exception as wrong:  # for whoever asks, who is in another thread
            came.put((name, wrong))

    for name, answer in asks.items():
        threading.Thread(target=ask, args=(name, answer), name=f"ask {name}", daemon=True).start()
    clock, found = MonotonicClock(), dict[str, Answer]()
    for _ in asks:
        try:
            name, said = came.get(timeout=max(0.0, within_s - clock.now()))
        except queue.Empty:
            break
        if isinstance(said, Exception):
            if not isinstance(said, GruppettoError):
                raise said
        elif said is not None:
            found[name] = said
    return {name: found[name] for name in asks if name in found}
