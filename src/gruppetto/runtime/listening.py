"""Where a syncer, or its standby, listens."""

from __future__ import annotations

import socket

__all__ = ["BACKLOG", "listening"]

BACKLOG = 128
EVERYWHERE = "::"


def listening(host: str, port: int) -> socket.socket | None:
    """A socket for ``::``, at which IPv4 is answered as well where this machine can; None: the host's own addresses, as
    its name or number says. Raises :class:`OSError`.

    asyncio would make ``::`` a place for IPv6 alone, and half of the learners would find nobody.
    """
    if host != EVERYWHERE or not socket.has_dualstack_ipv6():
        return None
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
