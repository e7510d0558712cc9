"""A TCP proxy in user space between one learner and the syncer, whose links can be made bad while they are in use.

Everything runs in one event loop. Memory is bounded, see :mod:`gruppetto.chaos.real.lane`.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from functools import partial

from gruppetto.chaos.real.lane import Lane, reset
from gruppetto.chaos.real.link import Conditions, Way

__all__ = ["Proxy"]

DIAL_S = 10.0
Upstream = Callable[[], tuple[str, int] | None]


class Proxy:
    """Listens on a free port of the loopback; ``upstream`` says where the syncer is now, None while nobody knows.

    Call its methods from the loop it was started in.
    """

    def __init__(self, upstream: Upstream, rng: random.Random) -> None:
        self._upstream = upstream
        self.up, self.down = Way(rng), Way(rng)
        """To the syncer, and back."""
        self.bytes_up, self.bytes_down = 0, 0
        self.refusing = False
        """New connections are reset at once."""
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._pairs: set[_Pair] = set()

    @property
    def port(self) -> int:
        assert self._listener is not None, "start it first"
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def start(self) -> None:
        """Begin to listen. In the loop."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def stop(self) -> None:
        """Close everything."""
        if self._accepting is not None and self._listener is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._listener.close()
        await self.cut()

    def set(self, *, up: Conditions, down: Conditions) -> None:
        """From now on; what is on its way arrives as it would have."""
        self.up.conditions, self.down.conditions = up, down
        for pair in self._pairs:
            pair.conditions_changed()

    async def cut(self) -> None:
        """Reset all connections, at both ends; what was on its way is lost."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cut()
        await asyncio.gather(*(pair.ended() for pair in pairs))

    def swallow(self, way: str) -> None:
        """The present connections pass nothing on any more, ``up``, ``down`` or ``both`` ways, and nobody is told."""
        for pair in self._pairs:
            pair.swallow(up=way in ("up", "both"), down=way in ("down", "both"))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setblocking(False)
            if self.refusing:
                reset(client)
                continue
            pair = _Pair(self, client)
            self._pairs.add(pair)
            pair.task.add_done_callback(partial(self._forget, pair))

    def _forget(self, pair: _Pair, _: asyncio.Task[None]) -> None:
        self._pairs.discard(pair)

    async def dial(self) -> socket.socket:
        """A connection to the syncer. Raises :class:`OSError`."""
        address = self._upstream()
        if address is None:
            raise ConnectionRefusedError("nobody has said yet where the syncer is")
        server = socket.socket()
        server.setblocking(False)
        try:
            async with asyncio.timeout(DIAL_S):
                await asyncio.get_running_loop().sock_connect(server, address)
        except BaseException:
            server.close()
            raise
        return server


class _Pair:
    """A learner's connection and the one to the syncer that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server: socket.socket | None = None
        self._lanes: tuple[Lane, ...] = ()
        self._swallows = (False, False)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        well = False
        try:
            self._server = await self._proxy.dial()
            for end in (self._client, self._server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lanes = (
                Lane(self._client, self._server, self._proxy.up, self._count_up),
                Lane(self._server, self._client, self._proxy.down, self._count_down),
            )
            self.swallow(up=self._swallows[0], down=self._swallows[1])
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(lane.read())
                    tasks.create_task(lane.write())
            well = True
        except* (OSError, TimeoutError):
            pass  # either end has gone: so has the other
        finally:
            for end in (self._client, *([] if self._server is None else [self._server])):
                if well:
                    end.close()
                else:
                    reset(end)

    def swallow(self, *, up: bool, down: bool) -> None:
        self._swallows = (up or self._swallows[0], down or self._swallows[1])
        for lane, swallows in zip(self._lanes, self._swallows, strict=False):
            lane.swallows = swallows
            lane.stir()

    def conditions_changed(self) -> None:
        for lane in self._lanes:
            lane.stir()

    def cut(self) -> None:
        self.task.cancel()

    async def ended(self) -> None:
        await asyncio.gather(self.task, return_exceptions=True)

    def _count_up(self, count: int) -> None:
        self._proxy.bytes_up += count

    def _count_down(self, count: int) -> None:
        self._proxy.bytes_down += count
