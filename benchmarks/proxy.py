"""What the chaos proxy does to a link: how much passes with no conditions, and how true latency and rate are.

Every figure stands beside the same transfer without a proxy, taken in turns: ``direct`` is what this machine's loopback
gives two asyncio ends at that moment. ``python benchmarks/proxy.py [--seconds S] [--json]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any

from gruppetto.chaos.real.link import CLEAR, Conditions
from gruppetto.chaos.real.proxy import Proxy

CHUNK = bytes(1 << 18)
DELAYS_S = (0.005, 0.02, 0.05, 0.2)
RATES_MBIT = (1.0, 10.0, 100.0, 1000.0)
PINGS = 100

SINK = """
import asyncio, sys
async def serve(reader, writer):
    kind = await reader.readexactly(1)
    while chunk := await reader.read(1 << 18):
        if kind == b"e":
            writer.write(chunk)
            await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""
"""Counts nothing, so that the slowest part is not the receiver. In a process of its own, as a syncer is."""


async def sent_per_s(port: int, seconds: float, connections: int = 1) -> float:
    """Bytes a second that arrive, the last one included."""
    began = time.perf_counter()

    async def send() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"s")
        sent = 0
        while time.perf_counter() - began < seconds:
            writer.write(CHUNK)
            await writer.drain()
            sent += len(CHUNK)
        writer.write_eof()
        await reader.read(-1)
        writer.close()
        return sent

    total = sum(await asyncio.gather(*(send() for _ in range(connections))))
    return total / (time.perf_counter() - began)


async def timed_s(port: int, count: int) -> float:
    """Seconds until ``count`` bytes have arrived."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    writer.write(b"s" + bytes(count))
    await writer.drain()
    writer.write_eof()
    await reader.read(-1)
    writer.close()
    return time.perf_counter() - began


async def round_trips_s(port: int, count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"e")
    found = []
    for _ in range(count):
        began = time.perf_counter()
        writer.write(b"x")
        await reader.readexactly(1)
        found.append(time.perf_counter() - began)
    writer.close()
    return found


async def measure(port: int, seconds: float) -> dict[str, Any]:
    proxy = Proxy(lambda: ("127.0.0.1", port), random.Random(0))
    proxy.start()
    direct, through = [], []
    for _ in range(3):
        direct.append(await sent_per_s(port, seconds))
        through.append(await sent_per_s(proxy.port, seconds))
    figures = {
        "direct_mb_per_s": statistics.median(direct) / 1e6,
        "proxy_mb_per_s": statistics.median(through) / 1e6,
        "round_trip_direct_ms": 1000 * statistics.median(await round_trips_s(port, PINGS)),
        "round_trip_proxy_ms": 1000 * statistics.median(await round_trips_s(proxy.port, PINGS)),
    }
    latencies = []
    for delay_s in DELAYS_S:
        proxy.set(up=Conditions(delay_s=delay_s / 2), down=Conditions(delay_s=delay_s / 2))
        found = sorted(await round_trips_s(proxy.port, max(10, int(PINGS * 0.02 / delay_s))))
        latencies.append(
            {"asked_ms": 1000 * delay_s, "median_ms": 1000 * statistics.median(found), "max_ms": 1000 * found[-1]}
        )
    rates = []
    for mbit in RATES_MBIT:
        proxy.set(up=Conditions(bytes_per_s=mbit * 1e6 / 8), down=CLEAR)
        count = int(mbit * 1e6 / 8 * seconds)
        rates.append({"asked_mbit": mbit, "got_mbit": count * 8 / 1e6 / await timed_s(proxy.port, count)})
    await proxy.stop()
    return {**figures, "latency": latencies, "rate": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each transfer")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", SINK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sink:
        assert sink.stdout is not None and sink.stdin is not None
        found = asyncio.run(measure(int(sink.stdout.readline()), flags.seconds))
        sink.stdin.close()
    if flags.json:
        print(json.dumps(found))
        return
    print(f"no conditions: {found['proxy_mb_per_s']:,.0f} MB/s through it, {found['direct_mb_per_s']:,.0f} without")
    trips = found["round_trip_proxy_ms"], found["round_trip_direct_ms"]
    print(f"a round trip: {trips[0]:.2f} ms through it, {trips[1]:.2f} without")
    for row in found["latency"]:
        print(f"{row['asked_ms']:6.0f} ms asked: median {row['median_ms']:7.2f} ms, max {row['max_ms']:7.2f}")
    for row in found["rate"]:
        print(f"{row['asked_mbit']:6.0f} Mbit/s asked: {row['got_mbit']:7.2f}")


if __name__ == "__main__":
    main()
