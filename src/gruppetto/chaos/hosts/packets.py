"""What has to be known of a packet: to whom it goes, and of which flow it is; and a packet with another address.

IPv4 without options and IPv6 without extension headers, TCP and UDP, which is all that two Linux hosts say here.
Everything stays bytes: thousands of packets a second go through this.
"""

from __future__ import annotations

import ipaddress
import struct

__all__ = ["Readdressing", "back", "flow", "opens", "packed", "target"]

TCP, UDP = 6, 17
SOURCE, TARGET, PORTS = 12, 16, 20
"""Where they lie in an IPv4 packet: one after the other."""
PROTOCOL, CHECKSUM = 9, 10
CHECKSUM_INSIDE = {TCP: 36, UDP: 26}
FLAGS, SYN, ACK = 33, 0x02, 0x10
IPV4_BYTES, IPV6_BYTES = 20, 40
MASK = 0xFFFF


def packed(address: str) -> bytes:
    """As it stands in a packet."""
    return ipaddress.ip_address(address).packed


def target(packet: bytes) -> bytes:
    """To which address it goes; empty for what is neither IPv4 nor IPv6."""
    match packet[0] >> 4 if packet else 0:
        case 4 if len(packet) >= IPV4_BYTES:
            return packet[TARGET : TARGET + 4]
        case 6 if len(packet) >= IPV6_BYTES:
            return packet[24:40]
        case _:
            return b""


def flow(packet: bytes) -> bytes:
    """Source, target and both ports of an IPv4 packet; of what has no ports, what stands there."""
    return packet[SOURCE : PORTS + 4]


def back(of: bytes) -> bytes:
    """The flow in the other direction.

    >>> back(bytes(range(12))).hex()
    '04050607000102030a0b0809'
    """
    return of[4:8] + of[:4] + of[10:12] + of[8:10]


def opens(packet: bytes) -> bool:
    """An IPv4 packet is the first of a TCP connection, or of no connection at all."""
    return packet[PROTOCOL] != TCP or packet[FLAGS] & (SYN | ACK) == SYN


class Readdressing:
    """Puts ``new`` in the place of ``old`` in IPv4 packets, as source or as target."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self.old, self.new = old, new
        words = zip(struct.unpack("!HH", old), struct.unpack("!HH", new), strict=True)
        self._change = sum((~was & MASK) + now for was, now in words)

    def source(self, packet: bytes) -> bytes:
        return self._at(SOURCE, packet)

    def target(self, packet: bytes) -> bytes:
        return self._at(TARGET, packet)

    def _at(self, at: int, packet: bytes) -> bytes:
        changed = bytearray(packet)
        changed[at : at + 4] = self.new
        self._mend(changed, CHECKSUM)
        if (inside := CHECKSUM_INSIDE.get(packet[PROTOCOL])) is not None and len(packet) >= inside + 2:
            self._mend(changed, inside)
        return bytes(changed)

    def _mend(self, packet: bytearray, at: int) -> None:
        """RFC 1624, equation 3: HC' = ~(~HC + Σ(~m + m'))."""
        total = (~(packet[at] << 8 | packet[at + 1]) & MASK) + self._change
        total = (total & MASK) + (total >> 16)
        total = ~((total & MASK) + (total >> 16)) & MASK
        packet[at], packet[at + 1] = total >> 8, total & 0xFF
