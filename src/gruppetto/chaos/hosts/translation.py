"""A site behind one public address, as home routers, clouds and campuses have it: it dials out, nobody dials in."""

from __future__ import annotations

import math

from gruppetto.chaos.hosts.packets import Readdressing, back, flow, opens, packed

__all__ = ["Translation"]


class Translation:
    """``private`` is seen as ``public``. Ports stay as they are, since one host has each public address here; IPv6
    passes as it is.

    What comes back passes only if something went out that way within ``idle_s``; a flow that nothing used for longer is
    forgotten, and what is said on it afterwards vanishes at either side, as it does at the gateways of large clouds.
    """

    def __init__(self, private: str, public: str, *, idle_s: float = 350.0) -> None:
        self._out = Readdressing(packed(private), packed(public))
        self._in = Readdressing(packed(public), packed(private))
        self.idle_s = idle_s
        self._used: dict[bytes, float] = {}
        """By the flow as it is outside."""

    def out(self, now: float, packet: bytes) -> bytes | None:
        """From the site into the world; None: it does not pass."""
        if packet[0] >> 4 != 4:
            return packet
        outside = self._out.source(packet)
        of = flow(outside)
        if not (opens(packet) or self._is_known(now, of)):
            return None
        self._used[of] = now
        return outside

    def back(self, now: float, packet: bytes) -> bytes | None:
        """From the world to the site; None: it does not pass."""
        if packet[0] >> 4 != 4:
            return packet
        of = back(flow(packet))
        if not self._is_known(now, of):
            return None
        self._used[of] = now
        return self._in.target(packet)

    def forget(self) -> None:
        """It has been started again."""
        self._used.clear()

    def _is_known(self, now: float, of: bytes) -> bool:
        return now - self._used.get(of, -math.inf) <= self.idle_s
