"""Memory of one process that another one of the same user on the same machine can read: bodies need no socket there.

A buffer is anonymous memory with a descriptor (``memfd_create``), named by process, descriptor and a number that nobody
guesses. Whoever may look into the process opens it by that name under ``/proc``: the kernel lets only the same user do
so, and only where both see the same processes. No directory, no file: when a process dies, however it dies, its memory
is gone, and there is nothing to sweep. Its size is sealed.

A reader copies first and checks its copy, so that it matters little what the owner does meanwhile; and it reads rather
than maps, so that no owner can pull the memory away under it. Linux only; elsewhere nothing is shared.
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import mmap
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError

__all__ = ["LEAST_BYTES", "NotSeen", "SharedMemory", "copy_from", "read_key"]

LEAST_BYTES = 1 << 16
"""Smaller buffers are ordinary memory: their bodies are no work for a socket."""
MAX_BUFFERS = 256
"""Of one process. Each takes a descriptor, of which a process has a thousand or so; what comes after is ordinary."""
MAX_PARTS = 16
"""That a body may lie in. What is scattered more goes through the socket."""
KEY_BYTES = 32
CHUNK_BYTES = 1 << 18
"""Copied at a time: looked at while it is in the cache."""
CHUNKS_A_TURN = 4
_PLACE = re.compile(r"(\d{1,10})/(\d{1,7})/([0-9a-f]{32})/(\d{1,15})/(\d{1,15})", re.ASCII)


class NotSeen(Exception):
    """That memory cannot be seen from here, or is not there any more."""


class Sink(Protocol):
    """Where bytes go: a :class:`~gruppetto.runtime.sinks.Sink`."""

    @property
    def missing_bytes(self) -> int: ...

    def room(self) -> memoryview: ...

    def wrote(self, num_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Bytes in a buffer of some process, in words ``PID/DESCRIPTOR/NONCE/OFFSET/LENGTH``."""

    pid: int
    descriptor: int
    nonce: str
    offset: int
    length: int

    @classmethod
    def parse(cls, text: str) -> _Place:
        """Raises :class:`ProtocolError`.

        >>> str(_Place.parse("7/3/" + 32 * "0" + "/0/64"))[:6]
        '7/3/00'
        >>> _Place.parse("../../etc/passwd")
        Traceback (most recent call last):
        ...
        gruppetto.errors.ProtocolError: '../../etc/passwd' names no shared memory
        """
        found = _PLACE.fullmatch(text)
        if found is None:
            raise ProtocolError(f"{text[:80]!r} names no shared memory")
        pid, descriptor, nonce, offset, length = found.groups()
        return cls(pid=int(pid), descriptor=int(descriptor), nonce=nonce, offset=int(offset), length=int(length))

    def __str__(self) -> str:
        return f"{self.pid}/{self.descriptor}/{self.nonce}/{self.offset}/{self.length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffer:
    """``num_bytes`` from ``address`` on are those of a descriptor."""

    address: int
    num_bytes: int
    descriptor: int
    nonce: str


class SharedMemory:
    """The buffers of this process that others may read, each for as long as somebody here has its array.

    ``allocate`` gives ordinary memory where there is no other: too small, too many, or not to be had.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, _Buffer] = {}  # single dict operations only: arrays die in whatever thread
        self._key = secrets.token_bytes(KEY_BYTES)
        self._offer: tuple[int, str] | None = None
        with suppress(OSError):
            descriptor, nonce = _anonymous(KEY_BYTES)
            os.pwrite(descriptor, self._key, 0)
            self._offer = descriptor, nonce
            weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def offer(self) -> str | None:
        """What to show to others: who can read it (:func:`read_key`) can read all the rest. None: nothing is shared."""
        if self._offer is None:
            return None
        descriptor, nonce = self._offer
        return str(_Place(pid=os.getpid(), descriptor=descriptor, nonce=nonce, offset=0, length=KEY_BYTES))

    def is_key(self, text: str) -> bool:
        """Whoever says this has read the offer."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._key.hex().encode())

    def allocate(self, numel: int) -> NDArray[np.float32]:
        """So many elements with arbitrary content."""
        num_bytes = 4 * numel
        if self._offer is None or num_bytes < LEAST_BYTES or len(self._buffers) >= MAX_BUFFERS:
            return np.empty(numel, np.float32)
        try:
            descriptor, nonce = _anonymous(num_bytes)
        except OSError:
            return np.empty(numel, np.float32)
        try:
            array = np.frombuffer(mmap.mmap(descriptor, num_bytes, mmap.MAP_SHARED | _POPULATE), np.float32)
        except (OSError, ValueError):
            os.close(descriptor)
            return np.empty(numel, np.float32)
        address = array.ctypes.data
        self._buffers[address] = _Buffer(address=address, num_bytes=num_bytes, descriptor=descriptor, nonce=nonce)
        weakref.finalize(array, self._let_go, address).atexit = False
        return array

    def places(self, parts: Iterable[memoryview]) -> str | None:
        """Where these bytes are, in words for another process; None: not all of them are in shared memory."""
        buffers = list(self._buffers.values())
        found: list[str] = []
        for part in parts:
            address = np.frombuffer(part, np.uint8).ctypes.data if part.nbytes else 0
            inside = (b for b in buffers if b.address <= address and address + part.nbytes <= b.address + b.num_bytes)
            buffer = next(inside, None)
            if buffer is None or len(found) >= MAX_PARTS:
                return None
            offset = address - buffer.address
            place = _Place(
                pid=os.getpid(),
                descriptor=buffer.descriptor,
                nonce=buffer.nonce,
                offset=offset,
                length=part.nbytes,
            )
            found.append(str(place))
        return ",".join(found) or None

    def _let_go(self, address: int) -> None:
        os.close(self._buffers.pop(address).descriptor)


# ── the other end ────────────────────────────────────────────────────────────────────────────────────────────────────


def read_key(offer: str) -> str:
    """What shows the owner of this offer that its memory can be read from here. Raises :class:`NotSeen`, and
    :class:`ProtocolError` for what is no offer."""
    place = _Place.parse(offer)
    if (place.offset, place.length) != (0, KEY_BYTES):
        raise ProtocolError("an offer of another size")
    with _opened(place) as descriptor:
        return os.pread(descriptor, KEY_BYTES, 0).hex()


async def copy_from(places: str, sink: Sink, moved: Callable[[], None]) -> None:
    """All bytes of a body into ``sink``, which has to miss just so many; ``moved`` is called now and then.

    Raises :class:`NotSeen`, and :class:`ProtocolError` for places that are none or do not fit.
    """
    texts = places.split(",", MAX_PARTS)
    if len(texts) > MAX_PARTS:
        raise ProtocolError("a body in too many places")
    parts = [_Place.parse(text) for text in texts]
    length = sum(part.length for part in parts)
    if length != sink.missing_bytes:
        raise ProtocolError(f"shared memory of {length} bytes for a body of {sink.missing_bytes}")
    for part in parts:
        with _opened(part) as descriptor:
            await _copy(descriptor, part, sink, moved)


async def _copy(descriptor: int, part: _Place, sink: Sink, moved: Callable[[], None]) -> None:
    at, end, chunks = part.offset, part.offset + part.length, 0
    while at < end:
        came = os.preadv(descriptor, [sink.room()[: min(CHUNK_BYTES, end - at)]], at)
        if not came:
            raise ProtocolError("shared memory that ends too early")
        sink.wrote(came)
        moved()
        at += came
        chunks += 1
        if chunks % CHUNKS_A_TURN == 0:
            await asyncio.sleep(0)


@contextmanager
def _opened(place: _Place) -> Iterator[int]:
    """A descriptor of our own. Nothing is opened that does not bear the name, and nothing believed that is not sealed
    memory of our own user after all."""
    link, name = Path(f"/proc/{place.pid}/fd/{place.descriptor}"), Path(f"/memfd:{_name(place.nonce)} (deleted)")
    try:
        if link.readlink() != name:
            raise NotSeen("it is not the memory that was named")
        descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise NotSeen("its process is gone, or in another container or machine") from None
    except OSError as wrong:
        raise NotSeen(f"it belongs to somebody else ({wrong.strerror})") from wrong
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or Path(f"/proc/self/fd/{descriptor}").readlink() != name:
            raise NotSeen("it is not the memory that was named")
        if found.st_uid != os.geteuid():
            raise NotSeen("it belongs to somebody else")
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        except OSError:
            sealed = False
        if not sealed:
            raise NotSeen("it is not sealed memory")
        if place.offset + place.length > found.st_size:
            raise ProtocolError(f"shared memory of {found.st_size} bytes, {place.offset + place.length} were named")
        yield descriptor
    finally:
        os.close(descriptor)


def _anonymous(num_bytes: int) -> tuple[int, str]:
    """Fresh memory of this size, all of it there, and never of another size. Raises :class:`OSError`."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no anonymous memory with a descriptor")
    nonce = secrets.token_hex(16)
    descriptor = os.memfd_create(_name(nonce), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)  # written to by mapping: what is not there would be a signal
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, nonce


def _name(nonce: str) -> str:
    return f"gruppetto-{nonce}"


_POPULATE: int = getattr(mmap, "MAP_POPULATE", 0)
_SEALS: int = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)
