"""Ports to come back to."""

from __future__ import annotations

import socket

__all__ = ["HeldPort"]


class HeldPort:
    """A port of loopback that the system gives to nobody who asks it for any; whoever names it can listen there.

    Given up between two lives of a server, it would be anybody's, and many are asked for on a machine that tests much
    at once.
    """

    def __init__(self) -> None:
        self._held = socket.socket()
        # It never listens, so others who say the same may.
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._held.getsockname()[1]}"

    def close(self) -> None:
        self._held.close()
