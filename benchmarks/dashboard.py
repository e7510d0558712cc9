"""What looking costs: the pace of rounds with and without an open page, the bytes of the page, the time to a picture.

python benchmarks/dashboard.py [--events 100000]

A syncer in this process serves two learners that answer at once over loopback, so its rounds last as long as its own
work does: the worst case for a page that shares its process. Stretches with and without a looker alternate; the ratio
of their paces is what to look at, on a machine that others use too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import aiohttp
import numpy as np
import torch

from gruppetto.attach import Learner
from gruppetto.dashboard.annex import annex
from gruppetto.dashboard.book import Book
from gruppetto.dashboard.pages import STATIC
from gruppetto.dashboard.window import head, window
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import encode_line

STRETCH_S, PAIRS = 4.0, 6


async def look(url: str) -> int:
    """As a page does: hear the news, fetch the picture once a second. How often it was fetched."""
    fetched, at = 0, 0.0
    async with aiohttp.ClientSession() as http, http.get(f"{url}/dashboard/events") as reply:
        with suppress(asyncio.CancelledError):
            async for _ in reply.content:
                if time.perf_counter() - at > 1:
                    at = time.perf_counter()
                    async with http.get(f"{url}/dashboard/data?slots=420") as data:
                        await data.read()
                    fetched += 1
    return fetched


def train(url: str, name: str, stop: list[bool]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Learner(model, optimizer, syncer=url, name=name, tokens_per_step=8) as learner:
        while not stop:
            time.sleep(0.03)
            model(torch.randn(4, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    del learner


async def pace(place: Path) -> dict[str, float]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    writer = TraceWriter(place / "trace.jsonl", {})
    rules = ProtocolSetting(num_learners=2, num_fragments=2, sync_period=4, overlap_steps=1, start_learners=2)
    setting = SyncerSetting(state=place / "state", listen="127.0.0.1:0")
    serving = asyncio.create_task(
        serve(rules, setting, trace=writer, on_ready=lambda e: ready.set_result(e.url), stop=stop, annex=annex)
    )
    url = await ready
    over: list[bool] = []
    threads = [Thread(target=train, args=(url, name, over), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()

    async def rounds() -> int:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/status") as reply:
            return int((await reply.json())["round"])

    while await rounds() < 5:
        await asyncio.sleep(0.2)
    alone: list[float] = []
    watched: list[float] = []
    for pair in range(PAIRS):
        for seen in (False, True) if pair % 2 else (True, False):
            looker = asyncio.create_task(look(url)) if seen else None
            before, began = await rounds(), time.perf_counter()
            await asyncio.sleep(STRETCH_S)
            made = (await rounds() - before) / (time.perf_counter() - began)
            (watched if seen else alone).append(made)
            if looker is not None:
                looker.cancel()
                assert await looker > 0
    over.append(True)
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)
    stop.set()
    await serving
    ratios = [a / b for a, b in zip(alone, watched, strict=True)]
    return {
        "rounds_a_second_alone": statistics.median(alone),
        "rounds_a_second_watched": statistics.median(watched),
        "round_time_ratio": statistics.median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
    }


def written(path: Path, events: int) -> Path:
    """A trace of eight learners in which every round has what it has in a real one."""
    names, rng = [f"learner-{i}" for i in range(8)], np.random.default_rng(0)
    with path.open("wb") as file:
        setting = {"rounds": None, "num_fragments": 24, "min_quorum": 1}
        file.write(encode_line({"trace": 1, "started_at": 0.0, "setting": setting, "run_id": "long", "numel": 10**9}))
        lines, round = 0, 0

        def say(t: float, kind: str, name: str, **data: object) -> None:
            nonlocal lines
            file.write(encode_line({"t": t, "who": "syncer", kind: name, "data": data}))
            lines += 1

        for name in names:
            say(0.0, "out", "MemberChanged", learner=name, state="live", why="synchronised")
        while lines < events:
            round += 1
            say(round - 0.5, "out", "QuorumMet", round=round, quorum_s=0.5, at_clock=8, live=8, grace_s=0.1)
            for name in names:
                one = {"learner": name, "round": round, "fragment": round % 24}
                counts = {"incarnation": 1, "steps": round, "tokens": 100 * round}
                say(round - 0.45, "in", "Progress", learner=name, clock=round, step_s=1.0, **counts)
                say(round - 0.4, "in", "Answer", **one, steps=24, tokens=2400, norms=[float(rng.random())])
                say(round - 0.4, "out", "Fold", **one, weight=1.0)
                say(round - 0.3, "in", "Folded", **one, cosine=float(rng.random()))
            say(round - 0.2, "out", "RoundClosed", round=round, why="", participants=names, live=8, grace_spent_s=0.05)
            say(round - 0.1, "in", "OuterStepped", round=round)
            say(round - 0.05, "in", "Persisted", round=round)
            say(float(round), "in", "Published", round=round)
    return path


def picture(place: Path, events: int) -> dict[str, float]:
    path = written(place / "long.jsonl", events)
    book = Book(path, MonotonicClock())
    began = time.perf_counter()
    book.read()
    json.dumps(head(book.picture, book.now, live=True))
    first = json.dumps(window(book.picture, 0.0, book.now, slots=420))
    first_s = time.perf_counter() - began
    book.read_all()
    whole_s = time.perf_counter() - began
    began = time.perf_counter()
    whole = json.dumps(window(book.picture, 0.0, book.now, slots=420))
    return {
        "events": events,
        "trace_bytes": path.stat().st_size,
        "first_picture_s": first_s,
        "whole_trace_read_s": whole_s,
        "one_picture_of_it_s": time.perf_counter() - began,
        "picture_bytes": max(len(first), len(whole)),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=100_000)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory() as name:
        found: dict[str, object] = {
            "page_bytes": sum(map(len, STATIC.values())),
            "trace": picture(Path(name), events),
            "pace": asyncio.run(pace(Path(name))),
        }
    json.dump(found, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
