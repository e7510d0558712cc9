"""How long a heartbeat takes while bodies saturate a slow link with a deep queue, as home and office links have.

    python benchmarks/pacing.py [--mbit 100] [--queue-ms 500] [--seconds 10] [--json]

Two network namespaces joined by a pair of virtual cables, each way held to ``--mbit`` by a token bucket whose queue
takes ``--queue-ms`` (ip and tc, as root). In one the real server, in the other the real client: four downloads and two
uploads at a time, as a learner has, and a heartbeat every 50 ms on its own connection. ``idle``: heartbeats alone;
``plain``: bodies as the kernel sends them; ``paced``: as ours are sent; ``limited``: as ours are sent when told 90 % of
the link. ``http`` and ``http-limited``: the last two by plain HTTP, as behind a proxy that lets no upgrade through.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
from aiohttp import web

from gruppetto.chaos.hosts.hosts import namespace_of, sweep
from gruppetto.protocol.messages import Heartbeat
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime import pacing
from gruppetto.runtime.heartbeat import Heartbeats
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.leases import LeasePool
from transport import LAYOUT_HASH, Ours, Shelf

NUMEL = 1 << 18
BEAT_S = 0.05
FAR, NEAR, PORT = "10.97.0.1", "10.97.0.2", 7171
WAYS = ("idle", "plain", "paced", "limited", "http", "http-limited")


class Hearing(Shelf):
    def heartbeat(self, data: bytes, **said: object) -> None:
        pass


def shape(name: str, mbit: float, queue_ms: float) -> None:
    """Two namespaces, far and near, and between them a cable with two ends of that name."""
    far, near = namespace_of("far"), namespace_of("near")
    held = f"root tbf rate {mbit}mbit burst 32kb latency {queue_ms}ms"
    for line in (
        f"netns add {far}", f"netns add {near}",
        f"link add {name}0 netns {far} type veth peer name {name}1 netns {near}",
        f"-n {far} addr add {FAR}/24 dev {name}0", f"-n {near} addr add {NEAR}/24 dev {name}1",
        f"-n {far} link set {name}0 up", f"-n {near} link set {name}1 up",
    ):  # fmt: skip
        subprocess.run(["ip", *line.split()], check=True)
    for space, device in ((far, f"{name}0"), (near, f"{name}1")):
        subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", device, *held.split()], check=True)


async def far_end(way: str, bytes_per_s: float) -> None:
    pace(way)
    server = HttpServer(Hearing(NUMEL), token=None, stall_s=30.0)  # type: ignore[arg-type]
    if way.endswith("limited"):
        server.bodies.pace = pacing.Bucket(bytes_per_s)
    runner = web.AppRunner(server.app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, FAR, PORT).start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def pace(way: str) -> None:
    if way == "plain":
        pacing.CONGESTION_CONTROL = b"cubic"
        pacing.UNSENT_BYTES = 0


async def near_end(way: str, seconds: float, bytes_per_s: float) -> dict[str, float]:
    pace(way)
    ours = Ours(PORT, None, NUMEL, host=FAR)
    beat = Heartbeat(learner=LearnerId("a"), incarnation=Incarnation(1))
    hearts = Heartbeats(lambda: ours.address, lambda: beat, period_s=5.0, token=None, tls=None)
    took_s: list[float] = []
    over = threading.Event()

    def beats() -> None:
        while not over.wait(BEAT_S):
            began = time.perf_counter()
            assert hearts.beat(beat)
            took_s.append(time.perf_counter() - began)

    moved = [0, 0]

    async def download() -> None:
        room = LeasePool().lend(NUMEL)
        while True:
            await ours.client.fetch(Fragment(0), Version(1), LAYOUT_HASH, room)

    async def upload() -> None:
        while True:
            await ours.upload()

    if way.startswith("http"):
        ours.client._road._none_at.add(ours.address)
    if way.endswith("limited"):
        ours.client.pace = pacing.Bucket(bytes_per_s)
    async with ours.client:
        tasks = [] if way == "idle" else [asyncio.create_task(f()) for f in 4 * [download] + 2 * [upload]]
        await asyncio.sleep(min(2.0, seconds / 4))
        before = ours.client.bytes_down, ours.client.bytes_up
        thread = threading.Thread(target=beats)
        thread.start()
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        spent = time.perf_counter() - began
        moved = [ours.client.bytes_down - before[0], ours.client.bytes_up - before[1]]
        over.set()
        thread.join()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    p50, p99 = np.quantile(took_s, [0.5, 0.99])
    return {
        "beats": len(took_s), "p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99, "max_ms": 1e3 * max(took_s),
        "down_mbit": moved[0] * 8e-6 / spent, "up_mbit": moved[1] * 8e-6 / spent,
    }  # fmt: skip


def measure(args: argparse.Namespace) -> dict[str, Any]:
    name = f"gp{os.getpid() % 10_000}"
    found = {}
    sweep()
    try:
        shape(name, args.mbit, args.queue_ms)
        for way in WAYS:
            here = [sys.executable, __file__, "--mbit", str(args.mbit), "--seconds", str(args.seconds), "--end"]
            there = ["ip", "netns", "exec", namespace_of("far"), *here, f"far:{way}"]
            with subprocess.Popen(there, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as far:
                assert far.stdout is not None and far.stdin is not None
                far.stdout.readline()
                near = ["ip", "netns", "exec", namespace_of("near"), *here, f"near:{way}"]
                found[way] = json.loads(subprocess.run(near, check=True, stdout=subprocess.PIPE).stdout)
                far.stdin.close()
    finally:
        for end in ("far", "near"):
            with suppress(subprocess.CalledProcessError):
                subprocess.run(["ip", "netns", "del", namespace_of(end)], check=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--queue-ms", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--end", help=argparse.SUPPRESS)
    args = parser.parse_args()
    bytes_per_s = 0.9 * args.mbit * 1e6 / 8
    if args.end:
        end, _, way = args.end.partition(":")
        if end == "far":
            asyncio.run(far_end(way, bytes_per_s))
        else:
            print(json.dumps(asyncio.run(near_end(way, args.seconds, bytes_per_s))))
        return
    if os.geteuid() != 0:
        print("left out: network namespaces need root")
        return
    found = measure(args)
    if args.json:
        print(json.dumps(found))
        return
    print(f"a link of {args.mbit:g} Mbit/s with a queue of {args.queue_ms:g} ms; heartbeats in ms")
    for way, row in found.items():
        print(
            f"{way:12} p50 {row['p50_ms']:7.1f}  p99 {row['p99_ms']:7.1f}  max {row['max_ms']:7.1f}"
            f"   down {row['down_mbit']:6.1f} Mbit/s  up {row['up_mbit']:6.1f}"
        )


if __name__ == "__main__":
    main()
