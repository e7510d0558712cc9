"""What one direction of a link does to packets, as times: pure, told what time it is.

A packet waits in a queue until the link has taken those before it (the rate), then travels (delay and jitter), and
keeps its place. What the queue has no room for is lost, and so is a share of the rest: what TCP makes of that, slow
starts and retransmissions, is the kernel's own doing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

__all__ = ["FREE", "Terms", "Way", "mbit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One direction of a host's link."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to so much more, drawn evenly."""
    bytes_per_s: float = math.inf
    queue_s: float = 0.1
    """What the queue before the link holds, as time. More is dropped."""
    loss: float = 0.0
    """Share of the packets."""
    mtu_bytes: int = 65_535
    """Larger packets vanish, and nobody is told: a filter has eaten the ICMP message that would say so."""
    cut: bool = False
    """Everything vanishes."""


FREE = Terms()


def mbit(rate: float) -> float:
    """Mbit/s as bytes per second.

    >>> mbit(8)
    1000000.0
    """
    return rate * 1e6 / 8


class Way:
    """One direction of a link, and what is queued before it.

    >>> way = Way(random.Random(0), Terms(delay_s=0.1, bytes_per_s=1000, queue_s=1.0))
    >>> [way.arrives(0.0, 500), way.arrives(0.0, 500), way.arrives(0.0, 500)]
    [0.6, 1.1, 1.6]
    >>> way.arrives(0.0, 500) is None  # the queue is full
    True
    """

    def __init__(self, rng: random.Random, terms: Terms = FREE) -> None:
        self._rng = rng
        self.terms = terms
        self.passed_bytes = self.dropped = 0
        self._free_at = self._last = -math.inf

    def arrives(self, now: float, num_bytes: int) -> float | None:
        """When a packet given to it now is there; None: never."""
        at = self.terms
        if at.cut or num_bytes > at.mtu_bytes or (at.loss and self._rng.random() < at.loss):
            self.dropped += 1
            return None
        begins = max(now, self._free_at)
        if begins - now > at.queue_s:
            self.dropped += 1
            return None
        self._free_at = begins + num_bytes / at.bytes_per_s
        self._last = max(self._last, self._free_at + at.delay_s + at.jitter_s * self._rng.random())
        self.passed_bytes += num_bytes
        return self._last

    def turn(self, terms: Terms) -> None:
        """Other terms from now on. What is on its way arrives as it would have; what comes behind may overtake it."""
        self.terms = terms
        self._free_at = self._last = -math.inf
