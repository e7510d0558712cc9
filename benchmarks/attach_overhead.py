"""What a learner costs its training loop: steps with and without Gruppetto, in alternating blocks of one run.

    python benchmarks/attach_overhead.py [--blocks 6] [--steps 10] [--preset closest] [--json]

A 10M-parameter transformer on one thread, P = H = 24 (or as in a preset of a run), so that in every step one fragment
leaves and one arrives, over loopback to a real syncer in another process. Both kinds of steps run in the same minutes
on the same machine; compare only their ratio. The background threads and the syncer need processor time too, which
shows in the wall-clock figures when no core is to spare. ``accounted`` is the call at the boundary plus the processor
time of the background threads, over that of a plain step: the figure that noise touches least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import gruppetto
from gruppetto.config import load_run
from gruppetto.runtime.serving import run_syncer
from gruppetto.runtime.setting import SyncerSetting

VOCABULARY, WIDTH, LAYERS, CONTEXT = 1024, 352, 6, 128


class Transformer(nn.Module):
    """Pre-norm causal blocks, 10M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.blocks(self.wte(ids[:, :-1]), mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy((hidden @ self.wte.weight.T).flatten(0, 1), ids[:, 1:].flatten())


def serve(state: Path, preset: str | None) -> None:
    run = load_run(preset=preset, endless=True)
    setting = SyncerSetting(
        state=state,
        listen="127.0.0.1:0",
        outer=run.outer.preset,
        uplink=run.codec.uplink,
        downlink=run.codec.downlink,
    )
    run_syncer(run.protocol, setting, on_ready=lambda endpoint: print(endpoint.url, flush=True))


def measure(url: str, blocks: int, steps: int, batch: int) -> dict[str, float]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    times_s: dict[bool, list[float]] = {True: [], False: []}
    cpu_s: dict[bool, list[float]] = {True: [], False: []}
    others_s: dict[bool, list[float]] = {True: [], False: []}
    calls_s: list[float] = []
    ratios: list[float] = []
    with gruppetto.Learner(model, None, hook=False, syncer=url, tokens_per_step=batch * CONTEXT, quiet=True) as learner:
        for block in range(-1, 2 * blocks):  # the first one warms everything up
            attached = block % 2 == 1
            block_s = []
            for _ in range(steps):
                ids = torch.randint(VOCABULARY, (batch, CONTEXT + 1), generator=generator)
                began, cpu_began, process_began = time.perf_counter(), time.thread_time(), time.process_time()
                model(ids).backward()
                optimizer.step()
                optimizer.zero_grad()
                if attached:
                    called = time.perf_counter()
                    learner.step()
                    calls_s.append(time.perf_counter() - called)
                block_s.append(time.perf_counter() - began)
                if block >= 0:
                    cpu_s[attached].append(time.thread_time() - cpu_began)
                    others_s[attached].append(time.process_time() - process_began - cpu_s[attached][-1])
            if block == -1:
                before = learner.metrics()
                continue
            times_s[attached] += block_s
            if attached:
                plain_s = statistics.median(times_s[False][-steps:])
                ratios.append(statistics.median(block_s) / plain_s)
        after = learner.metrics()
    counted = {key.removeprefix("gruppetto/"): after[key] - before[key] for key in after}
    attached_steps = blocks * steps
    call_s = statistics.median(calls_s)
    background_s = statistics.mean(others_s[True]) - statistics.mean(others_s[False])
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "blocks": blocks,
        "steps_per_block": steps,
        "plain_step_s": statistics.median(times_s[False]),
        "attached_step_s": statistics.median(times_s[True]),
        "plain_step_p99_s": statistics.quantiles(times_s[False], n=100)[98],
        "attached_step_p99_s": statistics.quantiles(times_s[True], n=100)[98],
        "overhead_percent": 100 * (statistics.median(times_s[True]) / statistics.median(times_s[False]) - 1),
        "overhead_percent_paired": 100 * (statistics.median(ratios) - 1),
        "cpu_overhead_percent": 100 * (statistics.median(cpu_s[True]) / statistics.median(cpu_s[False]) - 1),
        "call_s_per_step": call_s,
        "background_cpu_s_per_step": background_s,
        "accounted_percent": 100 * (call_s + background_s) / statistics.median(cpu_s[False]),
        "apply_s_per_step": counted["apply_s"] / attached_steps,
        "snapshot_s_per_step": counted["snapshot_s"] / attached_steps,
        "rounds": counted["round"],
        "contributions": counted["contributions"],
        "mib_up": counted["bytes_up"] / 2**20,
        "mib_down": counted["bytes_down"] / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=6, help="of each kind")
    parser.add_argument("--steps", type=int, default=10, help="in a block")
    parser.add_argument("--batch", type=int, default=4, help=f"windows of {CONTEXT} tokens")
    parser.add_argument("--preset", help="of the run, such as closest")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve, args.preset)
        return
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, __file__, "--serve", state]
        command += ["--preset", args.preset] if args.preset else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as syncer:
            assert syncer.stdout is not None
            try:
                found = measure(syncer.stdout.readline().strip(), args.blocks, args.steps, args.batch)
            finally:
                syncer.terminate()
    if args.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:26} {value:12.4f}".rstrip("0").rstrip("."))


if __name__ == "__main__":
    main()
