"""A run that is told to stop by a signal ends in good order, and says which one it was."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["told_to_stop"]


@contextmanager
def told_to_stop() -> Iterator[list[signal.Signals]]:
    """A list that SIGINT and SIGTERM are put into until the end of the block: whoever works there looks at it.

    Only the main thread of a process hears signals; in another one the list stays empty.
    """
    heard: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(signal.Signals(number))

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
