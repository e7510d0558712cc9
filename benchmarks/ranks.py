"""What a learner of many ranks costs its steps: FSDP2 and DDP ranks with and without Gruppetto, in blocks of one run.

    python benchmarks/ranks.py [--blocks 4] [--steps 5] [--ranks 2] [--json]

The model, the run and the syncer of ``attach_overhead.py``: 10M parameters, P = H = 24, one fragment each way in every
step. ``call_percent`` is the call at the boundary, ``meet_percent`` the two collectives alone (measured between ranks
that are there already), each over a plain step of the same ranks in the same minutes. ``held_mib`` is what a rank
holds of bases and snapshots, ``formula_mib`` 4·s·N·(1 + W/P) bytes for its share s of N parameters.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gruppetto
from attach_overhead import CONTEXT, VOCABULARY, Transformer
from gruppetto.attach.ranks import WORD_BYTES, Ranks

FRAGMENTS, WINDOW = 24, 2


def measure(kind: str, url: str, rank: int, size: int, port: int, blocks: int, steps: int, out: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    model: nn.Module = Transformer()
    numel = sum(p.numel() for p in model.parameters())
    if kind == "fsdp2":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(rank)
    times_s: dict[bool, list[float]] = {True: [], False: []}
    calls_s: list[float] = []
    with gruppetto.Learner(model, None, hook=False, syncer=url, name=kind, tokens_per_step=1000, quiet=True) as learner:
        for block in range(-2, 2 * blocks):  # the first two warm everything up
            attached = block % 2 == 1
            for _ in range(steps):
                ids = torch.randint(VOCABULARY, (2, CONTEXT + 1), generator=generator)
                began = time.perf_counter()
                model(ids).backward()
                optimizer.step()
                optimizer.zero_grad()
                called = time.perf_counter()
                if attached:
                    learner.step()
                if block >= 0:
                    times_s[attached].append(time.perf_counter() - began)
                    if attached:
                        calls_s.append(time.perf_counter() - called)
        holdings = learner._holdings
        held = [lease for _, lease in holdings.hold_bases()]
        assert holdings._snapshots is not None
        held += holdings._snapshots.held().values()
        held_mib = sum(lease.values.nbytes for lease in held) / 2**20
        meet_s = meetings()
    if rank == 0:
        plain_s, call_s = statistics.median(times_s[False]), statistics.median(calls_s)
        share = 1 / size if kind == "fsdp2" else 1.0
        out.put(
            {
                "plain_step_s": plain_s,
                "attached_step_s": statistics.median(times_s[True]),
                "call_percent": 100 * call_s / plain_s,
                "meet_s": meet_s,
                "meet_percent": 100 * meet_s / plain_s,
                "held_mib": held_mib,
                "formula_mib": 4 * share * numel * (1 + WINDOW / FRAGMENTS) / 2**20,
            }
        )
    dist.barrier()
    dist.destroy_process_group()


def meetings(times: int = 200) -> float:
    """The median of both collectives of a boundary, between ranks that do nothing else."""
    ranks, found = Ranks(dist.group.WORLD), []
    for _ in range(times):
        began = time.perf_counter()
        ranks.lowest([0] * (2 * FRAGMENTS + 5))
        if ranks.leads:
            ranks.tell(bytes(WORD_BYTES // 2))
        else:
            ranks.hear()
        found.append(time.perf_counter() - began)
    ranks.close()
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4, help="of each kind")
    parser.add_argument("--steps", type=int, default=5, help="in a block")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found: dict[str, dict[str, float]] = {}
    for kind in ("fsdp2", "ddp"):
        out = context.SimpleQueue()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as state:
            script = str(Path(__file__).with_name("attach_overhead.py"))
            with subprocess.Popen(
                [sys.executable, script, "--serve", state], stdout=subprocess.PIPE, text=True
            ) as syncer:
                assert syncer.stdout is not None
                url = syncer.stdout.readline().strip()
                told = (args.ranks, port, args.blocks, args.steps, out)
                ranks = [context.Process(target=measure, args=(kind, url, r, *told)) for r in range(args.ranks)]
                try:
                    for process in ranks:
                        process.start()
                    for process in ranks:
                        process.join()
                    found[kind] = out.get()
                finally:
                    syncer.terminate()
    if args.json:
        print(json.dumps(found))
        return
    for key in found["fsdp2"]:
        print(f"{key:18}" + "".join(f"{kind:>8} {found[kind][key]:10.4f}" for kind in found))


if __name__ == "__main__":
    main()
