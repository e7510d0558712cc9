"""Who carries packets between hosts: one thread that reads them from tunnel devices and writes them where they go."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from gruppetto.chaos.hosts.packets import packed, target
from gruppetto.chaos.hosts.translation import Translation
from gruppetto.chaos.hosts.way import FREE, Terms, Way
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["Internet", "Port"]

PACKET_BYTES = 65_535
AT_ONCE = 64
"""Packets read from one host before the next has its turn."""


@dataclass(slots=True, kw_only=True)
class Port:
    """Where a host is connected. A packet goes its ``up`` way into the middle, and the other host's ``down`` way."""

    name: str
    device: int
    """File descriptor of its tunnel device, which gives a packet a read and takes one a write."""
    up: Way
    down: Way
    translation: Translation | None = None
    undelivered: int = 0
    """Its own device was down."""


class Internet:
    """Carries packets while it runs. What is not for an address of a port is dropped, without a word."""

    def __init__(self, *, seed: int = 0) -> None:
        self.ports: dict[str, Port] = {}
        self._by_address: dict[bytes, Port] = {}
        self._seed = seed
        self._lock = threading.Lock()
        self._clock = MonotonicClock()
        self._due: list[tuple[float, int, Port, bytes, bool]] = []
        """When, a number that keeps the order, to whom, what; and whether it has the last part of its way behind it."""
        self._number = itertools.count()
        self._wake_read, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="internet", daemon=True)
        self._over = False

    def add(self, name: str, device: int, addresses: Sequence[str], translation: Translation | None = None) -> Port:
        """One more host, before it starts; ``addresses`` are those under which the world knows it."""
        os.set_blocking(device, False)
        ways = [Way(random.Random(f"{self._seed}/{name}/{way}")) for way in ("up", "down")]
        port = Port(
            name=name,
            device=device,
            up=ways[0],
            down=ways[1],
            translation=translation,
        )
        self.ports[name] = port
        self._by_address |= {packed(address): port for address in addresses}
        return port

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is on its way is lost."""
        self._over = True
        os.write(self._wake, b".")
        if self._thread.ident is not None:
            self._thread.join()
        for end in (self._wake_read, self._wake, *(port.device for port in self.ports.values())):
            os.close(end)

    def set(self, name: str, *, up: Terms = FREE, down: Terms = FREE) -> None:
        """Other terms on a host's link, from the next packet on."""
        with self._lock:
            self.ports[name].up.turn(up)
            self.ports[name].down.turn(down)

    def readdress(self, name: str, addresses: Sequence[str]) -> None:
        """The host has other addresses now; what goes to the old ones vanishes."""
        with self._lock:
            port = self.ports[name]
            others = {address: each for address, each in self._by_address.items() if each is not port}
            self._by_address = others | {packed(address): port for address in addresses}

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _carry(self) -> None:
        by_device = {port.device: port for port in self.ports.values()}
        wanted = [self._wake_read, *by_device]
        while not self._over:
            wait_s = max(0.0, self._due[0][0] - self._clock.now()) if self._due else None
            ready, _, _ = select.select(wanted, [], [], wait_s)
            with self._lock:
                for device in ready:
                    if device in by_device:
                        self._take(by_device[device])
                self._deliver()

    def _take(self, port: Port) -> None:
        for _ in range(AT_ONCE):
            try:
                packet: bytes | None = os.read(port.device, PACKET_BYTES)
            except OSError:  # nothing more, or its device is down
                return
            now = self._clock.now()
            if port.translation is not None and packet is not None:
                packet = port.translation.out(now, packet)
            if packet is None or (to := self._by_address.get(target(packet))) is None:
                continue
            self._send(port.up.arrives(now, len(packet)), to, packet, there=False)

    def _send(self, arrives: float | None, port: Port, packet: bytes, *, there: bool) -> None:
        if arrives is not None:
            heapq.heappush(self._due, (arrives, next(self._number), port, packet, there))

    def _deliver(self) -> None:
        now = self._clock.now()
        while self._due and self._due[0][0] <= now:
            at, _, port, packet, there = heapq.heappop(self._due)
            if not there:
                self._send(port.down.arrives(at, len(packet)), port, packet, there=True)
                continue
            passed = packet if port.translation is None else port.translation.back(now, packet)
            if passed is None:
                continue
            try:
                os.write(port.device, passed)
            except OSError:
                port.undelivered += 1
