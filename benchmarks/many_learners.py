"""Many light learners against one syncer: does it keep pace, and does anything grow?

    python benchmarks/many_learners.py [--learners 16 64 256] [--seconds 40] [--step-s 2] [--churn 2000] [--json]

Real learners (:class:`gruppetto.Learner` around a model of 4,160 parameters) in four processes, each on a thread of its
own, whose steps are padded to ``--step-s``: P = H = 4, a round a step. The syncer is a process of its own. ``rounds``
beside what the steps ask for; ``heartbeat`` is what a control message takes from here, every 50 ms; ``rss``,
``files`` and ``tasks`` are the syncer's. Afterwards ``--churn`` learners join and leave, half of them without a word,
under 64 names, and the same is counted again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web

from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.messages import ApplyMode, Goodbye, Heartbeat, Hello
from gruppetto.protocol.units import Incarnation, LearnerId
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.heartbeat import Heartbeats
from gruppetto.runtime.security.porter import Porter
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.serving import Endpoint, run_syncer
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.wire import FROM_SYNCER, HelloFrame, WelcomeFrame, decode_frame, encode_frame

PROCESSES = 4
WIDTH = 64
LAYOUT = Layout(
    tensors=(
        TensorSpec(name="weight", shape=(WIDTH, WIDTH), dtype="float32"),
        TensorSpec(name="bias", shape=(WIDTH,), dtype="float32"),
    )
)
BEAT_S = 0.05
PERIOD = 4


def serve(state: Path, learners: int) -> None:
    def annex(app: web.Application, service: SyncerService, porter: Porter | None) -> None:
        async def look(request: web.Request) -> web.Response:
            return web.json_response({"tasks": len(asyncio.all_tasks()), "cpu_s": time.process_time()})

        app.router.add_get("/bench", look)

    def ready(endpoint: Endpoint) -> None:
        print(endpoint.url, endpoint.pid, flush=True)

    protocol = ProtocolSetting(
        num_fragments=PERIOD, sync_period=PERIOD, num_learners=learners, min_quorum=max(1, learners // 2),
        start_learners=learners, start_timeout_s=600.0, liveness_s=30.0, num_slots=1024,
        apply=ApplyMode.CARRY,
    )  # fmt: skip
    run_syncer(protocol, SyncerSetting(state=state, listen="127.0.0.1:0"), on_ready=ready, annex=annex)


def ride(url: str, first: int, count: int, step_s: float) -> None:
    """``count`` learners, until standard input closes."""
    import torch

    import gruppetto

    torch.set_num_threads(1)
    over = threading.Event()

    def one(k: int) -> None:
        model = torch.nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with gruppetto.Learner(
            model, optimizer, syncer=url, name=f"light-{k}", tokens_per_step=1, quiet=True, donate=None
        ) as learner:
            while not over.wait(step_s):
                model(torch.ones(1, WIDTH)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if learner.finished:
                    return

    threads = [threading.Thread(target=one, args=(first + k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join(10.0)


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.load(reply)


def looked_at(url: str, pid: int) -> dict[str, float]:
    rss = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"rss_mb": int(rss.split()[1]) / 1024, "files": files, **asked(f"{url}/bench")}


def beats_s(url: str, seconds: float) -> list[float]:
    address = SyncerAddress.parse(url)
    beat = Heartbeat(learner=LearnerId("light-0"), incarnation=Incarnation(1))
    hearts, took_s = Heartbeats(lambda: address, lambda: beat, period_s=30.0, token=None, tls=None), []
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        if hearts.beat(beat):
            took_s.append(time.perf_counter() - began)
        time.sleep(BEAT_S)
    return took_s


def run(learners: int, args: argparse.Namespace) -> dict[str, float]:
    here = [sys.executable, __file__, "--step-s", str(args.step_s)]
    with tempfile.TemporaryDirectory() as place:
        syncer = subprocess.Popen(
            [*here, "--part", f"serve {place} {learners}"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        riders = []
        try:
            assert syncer.stdout is not None
            url, pid = syncer.stdout.readline().decode().split()
            share = -(-learners // PROCESSES)
            for first in range(0, learners, share):
                count = min(share, learners - first)
                riders.append(subprocess.Popen([*here, "--part", f"ride {url} {first} {count}"], stdin=subprocess.PIPE))
            patient = time.perf_counter() + 600
            while asked(f"{url}/v1/status")["round"] < 2:
                assert time.perf_counter() < patient, "it has not begun"
                time.sleep(0.5)
            first_round = asked(f"{url}/v1/status")["round"]
            before, began = looked_at(url, int(pid)), time.perf_counter()
            took_s = beats_s(url, args.seconds)
            now, status = looked_at(url, int(pid)), asked(f"{url}/v1/status")
            spent = time.perf_counter() - began
            live = sum(1 for learner in status["learners"].values() if learner.get("live", True))
            found = {
                "learners": learners, "live": live, "rounds": status["round"] - first_round,
                "asked": spent / args.step_s, "p50_ms": 1e3 * float(np.quantile(took_s, 0.5)),
                "p99_ms": 1e3 * float(np.quantile(took_s, 0.99)),
                "cpu": (now["cpu_s"] - before["cpu_s"]) / spent, **now,
            }  # fmt: skip
            for rider in riders:
                assert rider.stdin is not None
                rider.stdin.close()
            for rider in riders:
                rider.wait(60)
            if args.churn and learners == max(args.learners):
                found |= churned(url, int(pid), args.churn)
            return found
        finally:
            for process in [*riders, syncer]:
                process.kill()
                process.wait()


def churned(url: str, pid: int, count: int) -> dict[str, float]:
    asyncio.run(come_and_go(url, 128))  # all names are known now
    time.sleep(1.0)
    before = looked_at(url, pid)
    asyncio.run(come_and_go(url, count))
    time.sleep(1.0)
    after = looked_at(url, pid)
    return {
        f"{what}_{when}": values[what]
        for what in ("files", "tasks", "rss_mb")
        for when, values in (("before", before), ("after", after))
    }


async def come_and_go(url: str, count: int) -> None:
    async def one(http: aiohttp.ClientSession, k: int) -> None:
        name = f"light-{k % 64}"
        async with http.ws_connect(f"{url}/v1/control", max_msg_size=1 << 20) as socket:
            hello = Hello(learner=LearnerId(name), session=f"{name}-{k}", layout_hash=LAYOUT.layout_hash)
            await socket.send_bytes(encode_frame(HelloFrame.of(hello, LAYOUT)))
            frame = decode_frame((await socket.receive()).data, FROM_SYNCER)
            assert isinstance(frame, WelcomeFrame), frame
            if k % 2:
                welcome = frame.welcome
                bye = Goodbye(learner=LearnerId(name), incarnation=welcome.incarnation)
                await socket.send_bytes(encode_frame(bye))
            elif socket._response.connection is not None and socket._response.connection.transport is not None:
                socket._response.connection.transport.abort()

    async with aiohttp.ClientSession() as http:
        for first in range(0, count, 32):
            await asyncio.gather(*(one(http, k) for k in range(first, min(first + 32, count))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--step-s", type=float, default=2.0)
    parser.add_argument("--churn", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    match (args.part or "").split():
        case ["serve", place, learners]:
            serve(Path(place) / "state", int(learners))
            return
        case ["ride", url, first, count]:
            ride(url, int(first), int(count), args.step_s)
            return
    for learners in args.learners:
        row = run(learners, args)
        if args.json:
            print(json.dumps(row), flush=True)
            continue
        print(
            f"{row['learners']:4} learners ({row['live']} live): {row['rounds']:3} rounds of {row['asked']:4.0f};"
            f" heartbeat p50 {row['p50_ms']:6.1f} ms, p99 {row['p99_ms']:6.1f}; syncer {row['cpu']:4.0%} of a core,"
            f" {row['rss_mb']:5.0f} MB, {row['files']:4} files, {row['tasks']:4} tasks",
            flush=True,
        )
        if "files_after" in row:
            print(
                f"     {args.churn} came and went: files {row['files_before']} -> {row['files_after']},"
                f" tasks {row['tasks_before']} -> {row['tasks_after']},"
                f" {row['rss_mb_before']:.1f} -> {row['rss_mb_after']:.1f} MB"
            )


if __name__ == "__main__":
    main()
