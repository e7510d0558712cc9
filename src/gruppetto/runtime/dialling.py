"""How a learner makes connections: to whichever address of a name answers, in packets that pass.

A name is looked up anew for every connection, and all of its addresses are tried, one a quarter of a second after the
other (RFC 8305): a host may have an IPv6 address that leads nowhere.

Some paths take smaller packets than their ends think, and a filter eats the message that would say so: then what is
short passes, and what is long stands still for ever. So a connection on which something has stood still is followed by
one whose ends agree on segments that pass everywhere (:data:`SMALL_BYTES`); when that one stands still too, it was
something else, and the next one is usual again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import aiohappyeyeballs

__all__ = ["HEAD_START_S", "SMALL_BYTES", "Segments", "connected", "connected_within"]

HEAD_START_S = 0.25
"""Of an address before the next one of the same name is tried too."""
SMALL_BYTES = 1220
"""Of a segment: with its headers 1,280 bytes, which every link of IPv6 takes (RFC 8200, 5)."""
AddrInfo = tuple[Any, ...]


class Segments:
    """How large segments of new connections may be, for all connections of a learner to one syncer.

    >>> segments = Segments()
    >>> segments.stalled(small=False)
    >>> segments.stalled(small=False)  # a second one made before that was known
    >>> segments.small
    True
    >>> segments.stalled(small=True)
    >>> segments.small
    False
    """

    def __init__(self) -> None:
        self.small = False

    def stalled(self, *, small: bool) -> None:
        """Something has stood still on a connection that was made with ``small`` segments, or with usual ones."""
        if small == self.small:
            self.small = not small

    def make(self, info: AddrInfo) -> socket.socket:
        """A socket for one address. What each end announces when it connects holds for both."""
        family, kind, protocol = info[:3]
        made = socket.socket(family, kind, protocol)
        if self.small:
            with suppress(OSError, AttributeError):
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_BYTES)
        return made


async def connected(host: str, port: int, segments: Segments) -> socket.socket:
    """A connection to the first address of ``host`` that takes one. Raises :class:`OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await aiohappyeyeballs.start_connection(
        found, happy_eyeballs_delay=HEAD_START_S, interleave=1, socket_factory=segments.make
    )


def connected_within(
    host: str,
    port: int,
    segments: Segments,
    timeout_s: float,
    look_up: Callable[..., Iterable[AddrInfo]] = socket.getaddrinfo,
) -> socket.socket:
    """The same for a thread: one address after the other, each with its share of the time."""
    found = list(look_up(host, port, type=socket.SOCK_STREAM))
    trouble: OSError = OSError(f"{host} has no address")
    for info in found:
        made = segments.make(info)
        made.settimeout(timeout_s / len(found))
        try:
            made.connect(info[4])
        except OSError as wrong:
            made.close()
            trouble = wrong
        else:
            made.settimeout(timeout_s)
            return made
    raise trouble
