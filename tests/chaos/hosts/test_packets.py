"""Packets between hosts: other addresses keep all checksums right, gateways let in only what was asked for, and a
link's rate, queue and cuts are what they are said to be."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.chaos.hosts.hosts import missing
from gruppetto.chaos.hosts.packets import Readdressing, back, flow, packed, target
from gruppetto.chaos.hosts.translation import Translation
from gruppetto.chaos.hosts.way import FREE, Terms, Way

SYN, ACK = 0x02, 0x10
addresses = st.binary(min_size=4, max_size=4)
ports = st.integers(0, 65535)


def checksum(data: bytes) -> int:
    """RFC 1071, by the book."""
    whole = data + b"\0" * (len(data) % 2)
    words = struct.unpack(f"!{len(whole) // 2}H", whole)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp(source: bytes, target: bytes, ends: tuple[int, int], flags: int = ACK, body: bytes = b"") -> bytes:
    """A whole IPv4 packet, checksums and all."""
    inside = struct.pack("!HHIIBBHHH", *ends, 1, 2, 5 << 4, flags, 1000, 0, 0) + body
    pseudo = source + target + struct.pack("!BBH", 0, 6, len(inside))
    inside = inside[:16] + struct.pack("!H", checksum(pseudo + inside)) + inside[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(inside), 7, 0, 64, 6, 0) + source + target
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + inside


def is_sound(packet: bytes) -> bool:
    inside = packet[20:]
    pseudo = packet[12:20] + struct.pack("!BBH", 0, packet[9], len(inside))
    return checksum(packet[:20]) == 0 and checksum(pseudo + inside) == 0


@given(a=addresses, b=addresses, new=addresses, ends=st.tuples(ports, ports), body=st.binary(max_size=40))
def test_another_address_and_all_checksums_are_right(
    a: bytes, b: bytes, new: bytes, ends: tuple[int, int], body: bytes
) -> None:
    packet = tcp(a, b, ends, body=body)
    assert is_sound(packet) and target(packet) == b
    there = Readdressing(a, new).source(packet)
    assert is_sound(there) and there[12:16] == new and target(there) == b
    assert there[20:36] + there[38:] == packet[20:36] + packet[38:]
    assert is_sound(Readdressing(b, new).target(packet))
    assert back(back(flow(packet))) == flow(packet)
    assert back(flow(packet)) == flow(tcp(b, a, (ends[1], ends[0])))


PRIVATE, PUBLIC, OTHER = "192.168.1.2", "198.18.1.1", "198.18.0.1"


def goes_out(gate: Translation, now: float, port: int, flags: int = ACK) -> bool:
    passed = gate.out(now, tcp(packed(PRIVATE), packed(OTHER), (port, 7171), flags))
    assert passed is None or (is_sound(passed) and passed[12:16] == packed(PUBLIC))
    return passed is not None


def comes_in(gate: Translation, now: float, port: int, of: str = OTHER, flags: int = ACK) -> bool:
    passed = gate.back(now, tcp(packed(of), packed(PUBLIC), (7171, port), flags))
    assert passed is None or (is_sound(passed) and target(passed) == packed(PRIVATE))
    return passed is not None


def test_a_gateway_lets_in_what_was_asked_for_and_forgets_who_is_silent() -> None:
    gate = Translation(PRIVATE, PUBLIC, idle_s=100.0)
    assert not comes_in(gate, 0.0, 5000, flags=SYN)  # nobody dials in
    assert not goes_out(gate, 0.0, 5000)  # nor goes on with what never began
    assert goes_out(gate, 0.0, 5000, SYN)
    assert comes_in(gate, 90.0, 5000)
    assert not comes_in(gate, 90.0, 5001) and not comes_in(gate, 90.0, 5000, of="198.18.9.9")
    assert goes_out(gate, 180.0, 5000)
    assert not comes_in(gate, 281.0, 5000) and not goes_out(gate, 281.0, 5000)
    assert goes_out(gate, 281.0, 5000, SYN) and comes_in(gate, 281.0, 5000)
    gate.forget()
    assert not comes_in(gate, 282.0, 5000) and not goes_out(gate, 282.0, 5000)
    six = b"\x60" + bytes(59)
    assert gate.out(0.0, six) == gate.back(0.0, six) == six


@given(
    sizes=st.lists(st.tuples(st.floats(0.0, 0.05), st.integers(40, 1500)), max_size=60),
    rate=st.floats(1e3, 1e6),
    jitter_s=st.floats(0.0, 0.1),
)
def test_packets_keep_their_order_and_the_rate(sizes: list[tuple[float, int]], rate: float, jitter_s: float) -> None:
    way = Way(random.Random(0), Terms(delay_s=0.1, jitter_s=jitter_s, bytes_per_s=rate, queue_s=0.5))
    now, arrived, taken = 0.0, [0.0], 0
    for gap_s, size in sizes:
        now += gap_s
        at = way.arrives(now, size)
        if at is not None:
            taken += size
            assert now + 0.1 + size / rate <= at * (1 + 1e-9)
            assert at <= now + 0.1 + jitter_s + 0.5 + size / rate + jitter_s
            assert at >= arrived[-1]
            assert at >= 0.1 + taken / rate - 1e-9  # since the first of them began
            arrived.append(at)
    assert way.passed_bytes == taken and way.dropped == len(sizes) - len(arrived) + 1


def test_what_a_link_does_not_take() -> None:
    way = Way(random.Random(0), Terms(mtu_bytes=1300))
    assert way.arrives(0.0, 1300) == 0.0 and way.arrives(0.0, 1301) is None
    way.turn(Terms(cut=True))
    assert way.arrives(0.0, 1) is None
    way.turn(Terms(loss=0.25))
    lost = sum(way.arrives(0.0, 1) is None for _ in range(10_000)) / 10_000
    assert lost == pytest.approx(0.25, abs=0.02)
    way.turn(FREE)
    assert way.arrives(1.0, 9000) == 1.0


def test_it_is_said_what_is_missing() -> None:
    """One line, or nothing; on any machine."""
    why = missing()
    assert "\n" not in why
