"""Machines for a test: network namespaces of this one, each with one link into an :class:`Internet`.

A host has an address, a link that can be made bad, and a file of names. It takes root, ``ip`` and tunnel devices;
:func:`missing` says what is not here. All that is made goes with the block, its names are of this process;
:func:`sweep` takes away what is left of one that was killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from gruppetto.chaos.hosts.internet import Internet
from gruppetto.chaos.hosts.translation import Translation
from gruppetto.chaos.hosts.way import FREE, Terms
from gruppetto.errors import StateError

__all__ = ["Host", "Hosts", "enter", "missing", "namespace_of", "sweep"]

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
NAMES = Path("/etc/netns")
"""Where ``ip netns exec`` looks for files that a namespace has of its own."""
NAMESPACES = Path("/run/netns")
LINK = "wan"
PREFIX = "gruppetto-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine. ``private``: it is behind a translation, and the world knows it only by its first address."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 or IPv6; the first is the one that others are told."""
    private: str | None = None

    @property
    def own(self) -> tuple[str, ...]:
        """What it has at its own device."""
        return self.addresses if self.private is None else (self.private, *self.addresses[1:])


def missing(*, ipv6: bool = False) -> str:
    """Why there can be no hosts here; empty if there can.

    Tried out, since root in a container may have any part of the rights.
    """
    if os.geteuid() != 0:
        return "namespaces take root"
    if shutil.which("ip") is None:
        return "no ip command"
    if not TUN.exists():
        return f"no {TUN}"
    if ipv6 and not Path("/proc/net/if_inet6").exists():
        return "no IPv6"
    try:
        with Hosts([Host(name="probe", addresses=("fd18::fe" if ipv6 else "198.18.254.254",))]):
            return ""
    except StateError as wrong:
        return str(wrong)


def namespace_of(name: str) -> str:
    """What something of that name is called among the namespaces of the machine: by this process, too."""
    return f"{PREFIX}{os.getpid()}-{name}"


def sweep() -> None:
    """Take away the namespaces of processes that live no more."""
    for space in sorted({path.name for place in (NAMESPACES, NAMES) for path in place.glob(f"{PREFIX}*-*")}):
        process = space.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and not Path("/proc", process).exists():
            _remove(space)


def _remove(space: str) -> None:
    with suppress(StateError):
        _ip("netns", "del", space)
    shutil.rmtree(NAMES / space, ignore_errors=True)


class Hosts:
    """The hosts, from entering to leaving. Links begin free, and are :meth:`set` for the worse."""

    def __init__(self, hosts: Sequence[Host], *, seed: int = 0) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.internet = Internet(seed=seed)

    def __enter__(self) -> Self:
        sweep()
        try:
            for host in self.hosts.values():
                self._make(host)
        except BaseException:
            self._unmake()
            raise
        self.internet.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmake()

    def namespace(self, name: str) -> str:
        """What the host is called among those of the machine."""
        return namespace_of(name)

    def at(self, name: str, *command: str) -> list[str]:
        """The command, to be run at that host, with its own names."""
        return ["ip", "netns", "exec", self.namespace(name), *command]

    def set(self, name: str, *, up: Terms = FREE, down: Terms = FREE) -> None:
        """The host's link, from the next packet on."""
        self.internet.set(name, up=up, down=down)

    def plug(self, name: str, *, into: bool) -> None:
        """Pull the cable, which the host notices at once, or put it back."""
        space = self.namespace(name)
        _ip("-n", space, "link", "set", LINK, "up" if into else "down")
        if into:
            self._address(space, self.hosts[name].own)  # the kernel has dropped routes, and IPv6 addresses

    def know(self, name: str, names: Mapping[str, Sequence[str]]) -> None:
        """Which names the host can resolve, and to what. In place: programs that run see it."""
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{address} {word}" for word, addresses in names.items() for address in addresses]
        with (NAMES / self.namespace(name) / "hosts").open("r+", encoding="utf-8") as file:
            file.truncate()
            file.write("\n".join(lines) + "\n")

    def move(self, name: str, *addresses: str) -> None:
        """The host has other addresses; programs that listen at all of them go on, connections do not."""
        host = self.hosts[name]
        assert host.private is None, "only a host that the world knows moves"
        space = self.namespace(name)
        self.internet.readdress(name, addresses)
        self._address(space, addresses)
        for gone in set(host.addresses) - set(addresses):
            _ip("-n", space, "address", "del", _with_length(gone), "dev", LINK)
        self.hosts[name] = Host(name=name, addresses=addresses)

    # ── making ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _make(self, host: Host) -> None:
        space = self.namespace(host.name)
        _ip("netns", "add", space)
        (NAMES / space).mkdir(parents=True)
        (NAMES / space / "hosts").touch()
        device = f"g{os.getpid() % 10**6}n{len(self.internet.ports)}"
        try:
            end = _tunnel(device)
        except OSError as wrong:
            raise StateError(
                f"no tunnel device can be made ({wrong.strerror})", where=str(TUN), fix="run as root"
            ) from wrong
        translation = None if host.private is None else Translation(host.private, host.addresses[0])
        self.internet.add(host.name, end, host.addresses, translation)
        _ip("link", "set", device, "netns", space)
        _ip("-n", space, "link", "set", device, "name", LINK, "txqueuelen", "5000", "mtu", "1500")
        for each in ("lo", LINK):
            _ip("-n", space, "link", "set", each, "up")
        self._address(space, host.own)

    def _address(self, space: str, addresses: Sequence[str]) -> None:
        for address in addresses:
            more = ("nodad",) if ":" in address else ()
            _ip("-n", space, "address", "replace", _with_length(address), "dev", LINK, *more)
            family = "-6" if ":" in address else "-4"
            _ip("-n", space, family, "route", "replace", "default", "dev", LINK)

    def _unmake(self) -> None:
        self.internet.stop()
        for name in self.hosts:
            _remove(self.namespace(name))


@contextmanager
def enter(namespace: str) -> Iterator[None]:
    """This thread, and those that it starts, are at that host; their sockets are."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as home, (NAMESPACES / namespace).open("rb") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


def _tunnel(device: str) -> int:
    """A file descriptor that is the other end of a new network device."""
    end = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(end)
        raise
    return end


def _with_length(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"


def _ip(*arguments: str) -> None:
    ran = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise StateError(
            ran.stderr.strip() or f"exit code {ran.returncode}", where=f"ip {' '.join(arguments)}", fix="run as root"
        )
