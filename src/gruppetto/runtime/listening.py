"""Where a syncer, or its standby, listens."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from gruppetto.errors import AddressError

__all__ = ["BACKLOG", "cannot_listen", "listening", "try_listening"]

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


async def try_listening(host: str, port: int, where: str) -> None:
    """Take the place and give it back: nobody is answered there. Raises :class:`AddressError` if it cannot be had."""
    try:
        made = listening(host, port)
        if made is not None:
            made.close()
            return
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, host, port, family=socket.AF_UNSPEC, start_serving=False)
    except OSError as wrong:
        raise cannot_listen(wrong, where) from wrong
    server.close()


def cannot_listen(wrong: OSError, where: str) -> AddressError:
    """What to say of a place at which nobody can listen, and what to do.

    >>> str(cannot_listen(OSError(errno.EADDRNOTAVAIL, "cannot assign requested address"), "10.0.0.9:7171"))
    '10.0.0.9:7171: cannot be listened on (cannot assign requested address); use a name or address of this machine'
    """
    if isinstance(wrong, socket.gaierror) or wrong.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        fix = "use a name or address of this machine"
    elif wrong.errno == errno.EACCES:
        fix = "use a port above 1023, or port 0"
    else:
        fix = "use a free port, or port 0"
    # asyncio's own words name the place once more.
    said = os.strerror(wrong.errno) if wrong.errno is not None and wrong.errno > 0 else str(wrong.strerror or wrong)
    return AddressError(f"cannot be listened on ({said[:1].lower()}{said[1:]})", where=where, fix=fix)
