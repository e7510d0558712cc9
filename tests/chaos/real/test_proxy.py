"""Real sockets through the real proxy. Nothing here depends on how long anything takes, but for bounds from below."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gruppetto.chaos.real.link import CLEAR, Conditions
from gruppetto.chaos.real.proxy import Proxy

BAD = {
    "clear": CLEAR,
    "latency": Conditions(delay_s=0.01, jitter_s=0.01),
    "rate": Conditions(bytes_per_s=20e6),
    "loss": Conditions(loss=0.001),
    "all": Conditions(delay_s=0.002, jitter_s=0.002, bytes_per_s=50e6, loss=0.0005),
}
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """Says everything back, and remembers how its connections ended."""

    def __init__(self) -> None:
        self.endings: list[str] = []
        self.received = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                self.received += len(chunk)
                writer.write(chunk)
                await writer.drain()
            self.endings.append("closed")
        except OSError:
            self.endings.append("reset")
        finally:
            writer.close()


@asynccontextmanager
async def proxied(seed: int = 0) -> AsyncIterator[tuple[Proxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    proxy = Proxy(lambda: address, random.Random(seed))
    proxy.start()
    try:
        yield proxy, echo
    finally:
        await proxy.stop()
        server.close()


async def dial(proxy: Proxy) -> Ends:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def echoed(proxy: Proxy, data: bytes) -> bytes:
    """What comes back on a connection of its own."""
    reader, writer = await dial(proxy)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    _, back = await asyncio.gather(send(), reader.read(-1))
    writer.close()
    return back


def run(scene: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(bounded())


@pytest.mark.parametrize("name", sorted(BAD))
def test_every_byte_arrives_once_and_in_order(name: str) -> None:
    async def scene() -> None:
        async with proxied() as (proxy, _):
            proxy.set(up=BAD[name], down=BAD[name])
            datas = [random.Random(n).randbytes(300_000 + n) for n in range(4)]
            backs = await asyncio.gather(*(echoed(proxy, data) for data in datas))
            assert backs == datas
            assert proxy.bytes_up == proxy.bytes_down == sum(map(len, datas))

    run(scene)


def test_conditions_change_under_way_and_nothing_is_lost() -> None:
    async def scene() -> None:
        async with proxied() as (proxy, _):
            data = random.Random(1).randbytes(3_000_000)

            async def weather() -> None:
                rng = random.Random(2)
                while True:
                    proxy.set(up=rng.choice(list(BAD.values())), down=rng.choice(list(BAD.values())))
                    await asyncio.sleep(0.005)

            changing = asyncio.create_task(weather())
            assert await echoed(proxy, data) == data
            changing.cancel()

    run(scene)


def test_latency_and_rate_are_felt() -> None:
    async def scene() -> None:
        async with proxied() as (proxy, _):
            loop = asyncio.get_running_loop()
            proxy.set(up=Conditions(delay_s=0.05), down=Conditions(delay_s=0.05))
            began = loop.time()
            assert await echoed(proxy, b"x") == b"x"
            assert loop.time() - began >= 0.1
            proxy.set(up=Conditions(bytes_per_s=1e6), down=CLEAR)
            began = loop.time()
            # Two connections share the link.
            await asyncio.gather(*(echoed(proxy, bytes(100_000)) for _ in range(2)))
            assert loop.time() - began >= 0.19

    run(scene)


def test_what_is_held_arrives_when_the_partition_ends() -> None:
    async def scene() -> None:
        async with proxied() as (proxy, echo):
            ends = await dial(proxy)
            ends[1].write(b"before")
            assert await ends[0].readexactly(6) == b"before"
            proxy.set(up=Conditions(held=True), down=Conditions(held=True))
            ends[1].write(b"during")
            late = await dial(proxy)
            late[1].write(b"late")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await ends[0].read(1)
            assert echo.received == 6
            proxy.set(up=CLEAR, down=CLEAR)
            assert await ends[0].readexactly(6) == b"during"
            assert await late[0].readexactly(4) == b"late"

    run(scene)


def test_memory_is_bounded_while_nothing_passes() -> None:
    async def scene() -> None:
        async with proxied() as (proxy, echo):
            reader, writer = await dial(proxy)
            proxy.set(up=Conditions(held=True), down=CLEAR)
            sent = 0
            with pytest.raises(TimeoutError):
                while True:
                    writer.write(bytes(1 << 20))
                    sent += 1 << 20
                    async with asyncio.timeout(0.2):
                        await writer.drain()
            assert sent < 64 << 20
            proxy.set(up=CLEAR, down=CLEAR)
            writer.write_eof()
            assert len(await reader.read(-1)) == sent == echo.received

    run(scene)


def test_a_cut_is_a_reset_at_both_ends() -> None:
    async def scene() -> None:
        async with proxied() as (proxy, echo):
            reader, writer = await dial(proxy)
            writer.write(b"x")
            await reader.readexactly(1)
            assert proxy.connections == 1
            await proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            while not echo.endings:
                await asyncio.sleep(0.01)
            assert (echo.endings, proxy.connections) == (["reset"], 0)
            proxy.refusing = True
            with pytest.raises(ConnectionError):
                again, more = await dial(proxy)
                more.write(b"x")
                if await again.read(1) == b"":
                    raise ConnectionResetError
            proxy.refusing = False
            assert await echoed(proxy, b"well") == b"well"

    run(scene)


@pytest.mark.parametrize("way", ["both", "up", "down"])
def test_half_open_swallows_and_tells_nobody(way: str) -> None:
    async def scene() -> None:
        async with proxied() as (proxy, echo):
            reader, writer = await dial(proxy)
            writer.write(b"x")
            await reader.readexactly(1)
            proxy.swallow(way)
            writer.write(b"lost")
            while way == "down" and echo.received < 5:
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
            assert echo.received == (5 if way == "down" else 1)
            assert echo.endings == []
            assert await echoed(proxy, b"a new one") == b"a new one"

    run(scene)


def test_nobody_behind_it_is_a_reset() -> None:
    async def scene() -> None:
        proxy = Proxy(lambda: None, random.Random(0))
        proxy.start()
        reader, _ = await dial(proxy)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await proxy.stop()

    run(scene)


def test_a_flipped_bit_arrives_as_one() -> None:
    async def scene() -> None:
        async with proxied() as (proxy, _):
            proxy.set(up=Conditions(corrupt=1.0), down=CLEAR)
            data = bytes(200_000)
            back = await echoed(proxy, data)
            assert len(back) == len(data)
            assert 0 < sum(byte.bit_count() for byte in back) <= 200_000 // 4096

    run(scene)
