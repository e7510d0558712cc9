"""100,000 malformed messages at a syncer that serves over TLS: its memory before and after, and a good learner's rounds
meanwhile.

    python benchmarks/malformed.py [--messages 100000] [--json]

The syncer is a process of its own. One attacker with good papers says malformed things on every route that takes a
message; the memory is what the kernel says the syncer's process holds, after the first tenth and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from gruppetto.chaos.handmade import LAYOUT, Peer
from gruppetto.chaos.malformed import malformed_frames
from gruppetto.launch.ask import find_endpoint
from gruppetto.protocol.messages import Goodbye, Heartbeat, Hello, Progress
from gruppetto.protocol.units import Epoch, Incarnation, LearnerId
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import papers_of
from gruppetto.runtime.wire import Frame, HelloFrame, ProgressFrame, checksum, encode_frame

WAYS = 4
"""Connections of the attacker's at a time."""


async def ride(good: Peer) -> None:
    assert await good.beat() == 204
    await good.ride()


def valid_frames() -> list[bytes]:
    who: dict[str, Any] = {"learner": LearnerId("b"), "incarnation": Incarnation(1)}
    news = Progress(**who, epoch=Epoch(1), clock=1, step_s=0.1, steps=1, tokens=1, cursor=1)
    hello = Hello(learner=LearnerId("b"), session="s", layout_hash=LAYOUT.layout_hash)
    frames: list[Frame] = [HelloFrame.of(hello, LAYOUT), ProgressFrame(progress=news), Goodbye(**who), Heartbeat(**who)]
    return [encode_frame(frame) for frame in frames]


async def pelt(http: aiohttp.ClientSession, url: str, count: int, seed: int, codes: dict[int, int]) -> None:
    made = malformed_frames(valid_frames(), random.Random(seed))
    for n in range(count):
        frame = next(made)
        if n % 10 == 0:
            try:
                async with http.ws_connect(f"{url}/v1/control", max_msg_size=0) as socket:
                    with suppress(ConnectionError, aiohttp.ClientError):
                        await socket.send_bytes(frame)
                        with suppress(TimeoutError):
                            await asyncio.wait_for(socket.receive(), 0.02)
                status = 101
            except aiohttp.WSServerHandshakeError as refused:
                status = refused.status
            codes[status] = codes.get(status, 0) + 1
            continue
        if n % 2:
            request = http.post(f"{url}/v1/heartbeat", data=frame)
        else:
            body = frame[:28].ljust(28)
            given = {"Gruppetto-Codec": "fp32", "Gruppetto-Checksum": f"{checksum(body):08x}"}
            given["Gruppetto-Answer"] = base64.urlsafe_b64encode(frame[:3000]).decode()
            request = http.put(f"{url}/v1/contribution/1/0", data=body, headers=given)
        try:
            async with request as reply:
                await reply.read()
                status = reply.status
        except aiohttp.ClientError:  # a body that was not read took the connection with it
            status = 0
        codes[status] = codes.get(status, 0) + 1


def resident_bytes(pid: int) -> int:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) * 1024


async def attack(certs: Path, url: str, pid: int, messages: int) -> dict[str, Any]:
    codes: dict[int, int] = {}

    def session(name: str) -> aiohttp.ClientSession:
        tls = papers_of(certs, Identity(role=Role.LEARNER, name=name)).tls
        assert tls is not None
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))

    async with session("a") as mine, session("b") as theirs:
        good = await Peer(mine, url, "a").join()
        marks: list[int] = []
        began = time.perf_counter()
        for part in range(10):
            pelting = asyncio.gather(
                *(pelt(theirs, url, messages // 10 // WAYS, part * WAYS + way, codes) for way in range(WAYS))
            )
            while not pelting.done():
                await ride(good)
                await asyncio.sleep(0.05)
            await pelting
            marks.append(resident_bytes(pid))
        took_s = time.perf_counter() - began
        async with mine.get(f"{url}/v1/status") as reply:
            status = await reply.json()
    tokens = dict(status["tokens"])
    return {
        "messages": sum(codes.values()),
        "codes": dict(sorted(codes.items())),
        "seconds": took_s,
        "malformed": status["rejected"].get("malformed", 0),
        "rounds_of_the_good_learner": good.round,
        "round": status["round"],
        "ledger_balances": tokens.pop("consumed") == sum(tokens.values()) == 10 * good.round,
        "mib_after_a_tenth": marks[0] / 2**20,
        "mib_at_the_end": marks[-1] / 2**20,
        "grown_by": marks[-1] / marks[0] - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        certs, state = Path(place) / "certs", Path(place) / "state"
        authority = Authority(certs, now=wall_time_s())
        authority.found(days=10)
        authority.make(Identity(role=Role.SYNCER, name="syncer"), days=5, hosts=["127.0.0.1"])
        for name in "ab":
            authority.make(Identity(role=Role.LEARNER, name=name), days=5)
        rules = (
            "run.num_fragments=1",
            "run.sync_period=1",
            "run.overlap_steps=0",
            "codec.uplink=fp32",
            "run.liveness_s=120",
        )
        with (Path(place) / "log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gruppetto", "syncer", "--listen", "127.0.0.1:0", "--state", str(state)),
                    *("--certs", str(certs), *(word for rule in rules for word in ("--set", rule))),
                ],
                stderr=log,
            )
            try:
                while (endpoint := find_endpoint(state)) is None:
                    time.sleep(0.1)
                found = asyncio.run(attack(certs, endpoint.url, process.pid, flags.messages))
            finally:
                process.terminate()
                process.wait()
        found["log_lines"] = len((Path(place) / "log").read_text().splitlines())
    if flags.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:<28} {value:.4g}" if isinstance(value, float) else f"{key:<28} {value}")


if __name__ == "__main__":
    main()
