"""``python -m gruppetto.experiments.worker CACHE``: rides in, a line each; what came of them out, a line each.

It ends with its standard input, in the middle of a ride too: nobody would hear of it.
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


def main(cache: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this will end it
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
        except GruppettoError as error:
            done = Done(failed=" ".join(str(error).split()))
        answers.write(msgspec.json.encode(done) + b"\n")


def _listen(asked: queue.SimpleQueue[bytes]) -> None:
    # Not through sys.stdin: Python aborts at its end when a thread sits in a buffered read.
    rest = b""
    while more := os.read(0, 1 << 16):
        *whole, rest = (rest + more).split(b"\n")
        for line in whole:
            asked.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
