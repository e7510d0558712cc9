"""One direction of one connection through the proxy.

Memory is bounded: a lane holds :data:`MAX_IN_FLIGHT_BYTES` and then reads no more, so that its sender feels the link as
it would feel a real one. Without conditions a chunk is passed on as it comes, without a copy.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gruppetto.chaos.real.link import Way

__all__ = ["Lane", "reset"]

CHUNK_BYTES = 1 << 17
MAX_IN_FLIGHT_BYTES = 4 << 20
QUEUE_S = 0.05
"""A sender may fill the queue before a narrow link by so much: what a modest router buffers."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with RST, and drop what is unsent."""


class Lane:
    """A reader that gives each chunk its times, a writer that keeps them."""

    def __init__(self, source: socket.socket, target: socket.socket, way: Way, passed: Callable[[int], None]) -> None:
        self._source, self._target, self._way, self._passed = source, target, way, passed
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._in_flight = 0
        self._last = -math.inf
        self._over = False
        self._writing = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self.swallows = False

    def stir(self) -> None:
        self._news.set()
        self._room.set()

    async def read(self) -> None:
        """Until the sender has said all."""
        buffer = bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        while count := await self._loop.sock_recv_into(self._source, view[: self._way.chunk_bytes(CHUNK_BYTES)]):
            if self.swallows:
                continue
            if self._way.conditions.is_clear and not self._chunks and not self._writing:
                await self._loop.sock_sendall(self._target, view[:count])
                self._passed(count)
                continue
            left = self._take(bytes(view[:count]))
            ahead_s = left - self._loop.time() - QUEUE_S
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            while self._in_flight > MAX_IN_FLIGHT_BYTES and not self.swallows:
                self._room.clear()
                await self._room.wait()
        self._over = True
        self._news.set()

    def _take(self, chunk: bytes) -> float:
        left, arrives = self._way.times(self._loop.time(), len(chunk), after=self._last)
        if math.isinf(arrives):
            raise ConnectionResetError("given up after too many losses")
        self._last = arrives
        self._chunks.append((arrives, self._way.damage(chunk)))
        self._in_flight += len(chunk)
        self._news.set()
        return left

    async def write(self) -> None:
        """Until the last chunk has arrived."""
        while True:
            if not self._chunks or (self._way.conditions.held and not self.swallows):
                if self._over and not self._chunks:
                    break
                self._news.clear()
                await self._news.wait()
                continue
            arrives, chunk = self._chunks[0]
            wait_s = arrives - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue  # the link may have been held meanwhile
            self._writing = True
            self._chunks.popleft()
            if not self.swallows:
                await self._loop.sock_sendall(self._target, chunk)
                self._passed(len(chunk))
            self._writing = False
            self._in_flight -= len(chunk)
            self._room.set()
        if not self.swallows:
            with suppress(OSError):
                self._target.shutdown(socket.SHUT_WR)


def reset(end: socket.socket) -> None:
    """Close it in the way that the other end hears of."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.close()
