"""What goes wrong in a race, the same for every system.

It is dealt by how far the first worker is, to which nothing is ever done: so it meets every system in the same place of
its training, however fast that is.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gruppetto.experiments.peers.crew import Coordinator, Workers

__all__ = ["MISHAPS", "SLOW", "SPOILT", "Mishap", "mishaps_of"]

MISHAPS = ("", "storm", "stopped", "slow", "spoilt", "coordinator")
SLOW, SPOILT = (3, 4.0), 1
"""(who is slow, how many times), and whose gradients are no numbers from a quarter of the training on."""
STORM = ((0.15, 1), (0.3, 2), (0.45, 3), (0.6, 1), (0.75, 2))
"""(share of the training, who is killed −9 there)."""
BACK_AFTER_S = 1.0
"""Then it is started again, as a launcher would."""
HARM_AT, AWAY_S = 0.4, 5.0
"""Where a worker is stopped or the coordinator killed, and for how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """At that step of the first worker ``first`` is done, and ``later_s`` seconds later ``then``."""

    at_step: float
    first: Callable[[], None]
    later_s: float
    then: Callable[[], None]


def mishaps_of(name: str, steps: int, workers: Workers, coordinator: Coordinator) -> list[Mishap]:
    """In the order in which they come. A slow and a spoilt worker are so by themselves (:mod:`course`)."""
    match name:
        case "storm":
            return [
                Mishap(
                    at_step=share * steps,
                    first=partial(workers.signal, worker, signal.SIGKILL),
                    later_s=BACK_AFTER_S,
                    then=partial(workers.start, worker),
                )
                for share, worker in STORM
            ]
        case "stopped":
            stop, go = (partial(workers.signal, 1, number) for number in (signal.SIGSTOP, signal.SIGCONT))
            return [Mishap(at_step=HARM_AT * steps, first=stop, later_s=AWAY_S, then=go)]
        case "coordinator":
            return [
                Mishap(at_step=HARM_AT * steps, first=coordinator.kill, later_s=AWAY_S, then=coordinator.start),
            ]
        case _:
            return []
