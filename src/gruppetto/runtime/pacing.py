"""Bodies leave room for what is short and urgent: control frames and heartbeats share the link with them.

A queue before the slowest link is filled by whoever sends most, and everybody waits in it: half a second and more in
front of an ordinary line. Two things keep it short. Connections that carry bodies take the congestion control that goes
by the rate a link delivers instead of filling its queue until something is lost (BBR), where the kernel lets us; and
little waits in the kernel unsent. Where that is not enough, or the link has to be shared with others, a
:class:`Bucket` keeps all bodies together below a rate that somebody has named.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

__all__ = ["LEAST_BYTES_PER_S", "Bucket", "in_turn", "set_up"]

CONGESTION_CONTROL = b"bbr"
UNSENT_BYTES = 1 << 18
"""More is not taken by the kernel before some has left: what is stale need not be sent, and memory is bounded."""
BURST_S = 0.005
"""So much of a second's bytes may leave at once."""
LEAST_BURST_BYTES = 1 << 14
LEAST_BYTES_PER_S = 1 << 16
"""Anything slower would be taken for standing still."""


def set_up(connection: socket.socket, peer: str = "") -> None:
    """Before a connection carries bodies. What this kernel does not have is left as it is, and so is a connection
    within this machine: there is no slow link, and pacing costs a third more processor time. ``peer``: the address
    that it is about to be made to; "": it is made."""
    if _stays_here(connection, peer):
        return
    with suppress(OSError, AttributeError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
    if UNSENT_BYTES:
        with suppress(OSError, AttributeError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def _stays_here(connection: socket.socket, peer: str = "") -> bool:
    try:
        peer = peer or connection.getpeername()[0]
        return ipaddress.ip_address(peer.removeprefix("::ffff:")).is_loopback
    except (OSError, ValueError, IndexError):  # not by TCP, or gone already
        return True


class Bucket:
    """Holds several connections together to ``bytes_per_s``. First come, first served.

    In any t seconds at most ``bytes_per_s`` · t + :attr:`burst_bytes` pass, and somebody passes whenever that allows.
    They may belong to event loops of several threads, which all have the same clock.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.burst_bytes = max(LEAST_BURST_BYTES, int(BURST_S * bytes_per_s))
        """The most that can be taken at once."""
        self._free_at = float("-inf")
        """When the bucket will be full again."""
        self._lock = threading.Lock()

    def delay_s(self, num_bytes: int, now: float) -> float:
        """Take so many bytes, at most a burst; how long to wait before they may leave."""
        assert 0 < num_bytes <= self.burst_bytes
        with self._lock:
            self._free_at = free_at = max(self._free_at, now) + num_bytes / self.bytes_per_s
        return max(0.0, free_at - self.burst_bytes / self.bytes_per_s - now)

    async def take(self, num_bytes: int) -> None:
        """Wait for the turn of so many bytes, at most a burst."""
        wait_s = self.delay_s(num_bytes, asyncio.get_running_loop().time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)


async def in_turn(body: bytes | memoryview, pace: Bucket | None, *, most_bytes: int) -> AsyncIterator[memoryview]:
    """The bytes of ``body`` in order, in chunks of at most ``most_bytes``, each when ``pace`` lets it leave."""
    chunk_bytes = most_bytes if pace is None else min(most_bytes, pace.burst_bytes)
    view = memoryview(body)
    for at in range(0, view.nbytes, chunk_bytes):
        chunk = view[at : at + chunk_bytes]
        if pace is not None:
            await pace.take(chunk.nbytes)
        yield chunk
