"""``python -m gruppetto.experiments.worker CACHE``: rides in, a line each; what came of them out, a line each.

It ends with its standard input, and by SIGTERM, in the middle of a ride too: nobody would hear of it. What the ride has
put into temporary directories goes with it, and so do processes that it has started.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from pathlib import Path

import msgspec

from gruppetto.errors import GruppettoError
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.runner import Done
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["main"]

LEAVES_WITHIN_S = 4.0
TERMINATED = 128 + signal.SIGTERM


def main(cache: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this will end it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _leave)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is no answer
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    from gruppetto.experiments.riding import ride

    clock = MonotonicClock()
    while True:
        asked_for = msgspec.json.decode(asked.get(), type=Ride)
        began = clock.now()
        try:
            done = Done(result=ride(asked_for, cache), took_s=clock.now() - began)
        except (GruppettoError, ImportError, OSError, MemoryError) as error:
            done = Done(failed=" ".join(str(error).split()) or type(error).__name__)
        answers.write(msgspec.json.encode(done) + b"\n")


def _listen(asked: queue.SimpleQueue[bytes]) -> None:
    # Not through sys.stdin: Python aborts at its end when a thread sits in a buffered read.
    rest = b""
    while more := os.read(0, 1 << 16):
        *whole, rest = (rest + more).split(b"\n")
        for line in whole:
            asked.put(line)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(LEAVES_WITHIN_S)
    os._exit(TERMINATED)


def _leave(number: int, frame: object) -> None:
    """Once: what comes later finds it leaving."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(TERMINATED)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except SystemExit:
        os._exit(TERMINATED)  # all is left in order by now, and taking torch apart would take seconds
