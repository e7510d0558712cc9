"""What giving its state away costs a learner, and how fast it gets across.

    python benchmarks/donation.py [--parameters 10] [--rounds 9] [--json]

A model of so many million parameters with AdamW. ``boundary`` is what the training thread waits for: the copy of the
moments and the hold on the bases. ``memcpy`` copies as many bytes with one call in the same run: compare the ratio.
``first`` is a cut into fresh memory, whose first touch costs extra; while guests are there the memory is used again.
``across`` is a whole transfer over loopback, with both sides in this process: digests are taken twice, as always.
``across_cpu_s`` is the processor time of both sides, which other work on the machine touches least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import numpy as np
import torch
from torch import nn

from gruppetto.attach.giving import Giving
from gruppetto.attach.holdings import Holdings
from gruppetto.attach.sharding import FlatModel
from gruppetto.protocol import LearnerCore
from gruppetto.protocol.learner import FragmentState
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.units import Fragment, LearnerId, Version
from gruppetto.runtime.cut import cut
from gruppetto.runtime.donation import Cut
from gruppetto.runtime.donor import DonationServer
from gruppetto.runtime.joining import Visit

WIDTH = 512


def learner(millions: float) -> tuple[Giving, LearnerCore, Holdings]:
    layers = max(1, round(millions * 1e6 / WIDTH**2))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    flat = FlatModel(model)
    holdings = Holdings(flat)
    parts = cut(flat.layout, 24, "balanced", ())
    holdings.cut(parts, ApplyMode.OVERWRITE)
    core = LearnerCore(LearnerId("donor"), session="s", layout_hash=flat.layout.layout_hash)
    core.run_id, core.linked = "r", True
    core.fragments = [FragmentState(version=Version(1)) for _ in range(parts.num_fragments)]
    for p in range(parts.num_fragments):
        holdings._bases[Fragment(p)] = holdings.seed_part(Fragment(p))
    return Giving(model, optimizer, holdings), core, holdings


async def across(giving: Giving, core: LearnerCore, holdings: Holdings) -> float:
    """Seconds of one transfer."""
    server = DonationServer("127.0.0.1", 0, token=None, stall_s=30.0, core=core)
    address = await server.open()

    async def train() -> None:
        while not server.wants_cut():
            await asyncio.sleep(0.001)
        server.give(giving.cut(core, layout_hash=core.layout_hash))

    training = asyncio.create_task(train())
    began = time.perf_counter()
    visit = Visit(address, learner="new", session="s", token=None, stall_s=30.0)
    await visit.fetch(core.held, run_id="r", layout_hash=core.layout_hash, fragmentation_hash=holdings.cut_hash)
    took_s = time.perf_counter() - began
    await training
    await server.close()
    return took_s


def measure(millions: float, rounds: int) -> dict[str, float]:
    torch.set_num_threads(1)
    giving, core, holdings = learner(millions)
    times_s: dict[str, list[float]] = {"first": [], "boundary": [], "memcpy": [], "across": [], "cpu": []}
    moments, source, target = 0, np.empty(0, np.uint8), np.empty(0, np.uint8)
    for _ in range(rounds):
        giving.forget()
        for kind in ("first", "boundary"):
            began = time.perf_counter()
            made: Cut = giving.cut(core, layout_hash=core.layout_hash)
            times_s[kind].append(time.perf_counter() - began)
            moments = sum(t.payload_bytes for t in made.manifest.tensors if t.part == "optimizer")
            total = made.manifest.total_bytes
            made.release()
        if not source.size:
            source, target = np.ones(moments, np.uint8), np.ones(moments, np.uint8)
        began = time.perf_counter()
        target[:] = source
        times_s["memcpy"].append(time.perf_counter() - began)
        busy = time.process_time()
        times_s["across"].append(asyncio.run(across(giving, core, holdings)))
        times_s["cpu"].append(time.process_time() - busy)
    median = {kind: statistics.median(values) for kind, values in times_s.items()}
    return {
        "state_mb": total / 1e6,
        "copied_mb": moments / 1e6,
        "first_ms": 1e3 * median["first"],
        "boundary_ms": 1e3 * median["boundary"],
        "boundary_gb_per_s": moments / median["boundary"] / 1e9,
        "memcpy_ms": 1e3 * median["memcpy"],
        "boundary_over_memcpy": median["boundary"] / median["memcpy"],
        "across_s": median["across"],
        "across_mb_per_s": total / median["across"] / 1e6,
        "across_cpu_s": median["cpu"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=10.0, help="millions")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.parameters, args.rounds)
    print(json.dumps(found) if args.json else "\n".join(f"{key:22} {value:10.3f}" for key, value in found.items()))


if __name__ == "__main__":
    main()
