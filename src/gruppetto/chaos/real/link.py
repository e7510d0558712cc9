"""What a link does to the bytes on it, as times: pure, told what time it is.

A chunk first waits until the link has taken those before it (the rate), then travels (the latency, with jitter), and
keeps its place behind what the same connection sent before. TCP never loses a byte, and a proxy sees only TCP: so a
lost packet is what an application feels of it, a wait. One retransmission takes a round trip when enough packets follow
to give it away, the retransmission time-out otherwise, doubled each time that it is lost again; after
:data:`GIVES_UP` losses in a row the connection is reset. How a congestion window shrinks after a loss is not modelled.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from gruppetto.chaos.real.plan import LiveFault

__all__ = ["CLEAR", "Conditions", "Way", "combined"]

PACKET_BYTES = 1448
"""What an Ethernet frame has room for."""
RETRANSMIT_S = 0.2
"""The shortest retransmission time-out of Linux."""
TELLTALES = 3
"""Packets that have to follow a lost one for it to be sent again before any time-out."""
GIVES_UP = 6
CORRUPTIBLE_BYTES = 4096
"""A chunk of at least this size is the body of a transfer, not a frame of the control connection, which has no checksum
of its own: what protects it from a flipped bit on a real network is TCP's, or TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """One direction of a link."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to so much more, drawn evenly."""
    bytes_per_s: float = math.inf
    loss: float = 0.0
    """Share of the packets."""
    corrupt: float = 0.0
    """Share of the large chunks."""
    held: bool = False
    """Nothing passes, nothing is lost."""

    @property
    def is_clear(self) -> bool:
        return self == CLEAR


CLEAR = Conditions()


def combined(faults: Iterable[LiveFault], way: str) -> Conditions:
    """All that is wrong with one direction (``up`` or ``down``) at once: delays add, the narrowest rate counts.

    >>> slow = LiveFault(at_s=0, kind="latency", who="a", delay_s=0.1)
    >>> narrow = LiveFault(at_s=0, kind="bandwidth", who="a", mbit_per_s=8, way="up")
    >>> combined([slow, slow, narrow], "up")
    Conditions(delay_s=0.2, jitter_s=0.0, bytes_per_s=1000000.0, loss=0.0, corrupt=0.0, held=False)
    >>> combined([narrow], "down").is_clear
    True
    """
    delay_s = jitter_s = corrupt = 0.0
    bytes_per_s, arrives, held = math.inf, 1.0, False
    for fault in faults:
        if fault.way not in (None, "both", way):
            continue
        dial = fault.dials
        match fault.kind:
            case "latency":
                delay_s, jitter_s = delay_s + dial["delay_s"], jitter_s + dial["jitter_s"]
            case "bandwidth":
                bytes_per_s = min(bytes_per_s, dial["mbit_per_s"] * 1e6 / 8)
            case "loss":
                arrives *= 1 - dial["share"]
            case "corrupt":
                corrupt = max(corrupt, dial["share"])
            case "partition":
                held = True
            case _:
                pass
    return Conditions(
        delay_s=delay_s, jitter_s=jitter_s, bytes_per_s=bytes_per_s, loss=1 - arrives, corrupt=corrupt, held=held
    )


class Way:
    """One direction of a link that all connections of a learner share."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.conditions = CLEAR
        self._free_at = -math.inf
        """When the link will have taken all that it was given."""

    def chunk_bytes(self, most: int) -> int:
        """How much to read at once, so that connections take turns on a narrow link."""
        per_turn = self.conditions.bytes_per_s * 0.02
        return most if per_turn >= most else max(PACKET_BYTES, int(per_turn))

    def times(self, now: float, count: int, *, after: float) -> tuple[float, float]:
        """When ``count`` bytes given to it now have left, and when they arrive, not before ``after``.

        Infinite: the connection breaks on it.
        """
        at = self.conditions
        left = max(self._free_at, now) + count / at.bytes_per_s
        self._free_at = left
        travel_s = at.delay_s + at.jitter_s * self._rng.random()
        return left, max(after, left + travel_s + self._lost_s(count))

    def damage(self, chunk: bytes) -> bytes:
        """The chunk, or a copy with one bit flipped somewhere in its second half."""
        if not self.conditions.corrupt or len(chunk) < CORRUPTIBLE_BYTES:
            return chunk
        if self._rng.random() >= self.conditions.corrupt:
            return chunk
        at = self._rng.randrange(len(chunk) // 2, len(chunk))
        damaged = bytearray(chunk)
        damaged[at] ^= 1 << self._rng.randrange(8)
        return bytes(damaged)

    def _lost_s(self, count: int) -> float:
        """How long a chunk waits for what was lost of it. Packets lost together are sent again together."""
        share = self.conditions.loss
        if not share:
            return 0.0
        packets = -(-count // PACKET_BYTES)
        if self._rng.random() < (1 - share) ** packets:
            return 0.0
        round_trip_s = 2 * self.conditions.delay_s + self.conditions.jitter_s
        timeout_s = RETRANSMIT_S + round_trip_s
        wait_s = round_trip_s if packets > TELLTALES else timeout_s
        for again in range(1, GIVES_UP):
            if self._rng.random() >= share:
                return wait_s
            wait_s += timeout_s * 2**again
        return math.inf
