"""Does the loop feel anything? Step times with and without Gruppetto, and how long a thread of pure Python is held up.

    python benchmarks/step_times.py [--uplinks fp32 bf16 int8 int4] [--blocks 20] [--steps 50] [--json]

Short steps (2 million parameters, some ten milliseconds), P = H = 4: in every step a fragment of 2 MB is snapshotted,
encoded (int8 and int4 with what was left unsaid before), sent, received and applied, over loopback to a real syncer in
another process. Blocks of steps with and without it take turns in one run; compare their ratios. ``held up`` is a
thread that asks to be woken every millisecond, and how much later it runs: it waits for the interpreter's lock as a
data loader's thread would.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

import gruppetto
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.serving import run_syncer
from gruppetto.runtime.setting import SyncerSetting

FRAGMENTS, WIDTH, LAYERS, BATCH = 4, 512, 8, 48
BEAT_S = 1e-3
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def serve(state: Path, uplink: str) -> None:
    protocol = ProtocolSetting(num_fragments=FRAGMENTS, sync_period=FRAGMENTS)
    setting = SyncerSetting(state=state, listen="127.0.0.1:0", uplink=uplink)
    run_syncer(protocol, setting, on_ready=lambda endpoint: print(endpoint.url, flush=True))


@dataclass
class Beat:
    """A thread that wants to run every millisecond."""

    attached: bool = False
    over: bool = False
    late_s: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})

    def run(self) -> None:
        while not self.over:
            began = time.perf_counter()
            time.sleep(BEAT_S)
            self.late_s[self.attached].append(time.perf_counter() - began - BEAT_S)


def measure(url: str, blocks: int, steps: int) -> dict[str, float]:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    times_s: dict[bool, list[float]] = {True: [], False: []}
    beat = Beat()
    thread = threading.Thread(target=beat.run, daemon=True)
    with gruppetto.Learner(model, None, hook=False, syncer=url, tokens_per_step=BATCH, quiet=True) as learner:
        before = learner.metrics()
        for block in range(-2, 2 * blocks):  # the first two warm everything up
            beat.attached = attached = block % 2 == 1
            if block == 0:
                thread.start()
                before = learner.metrics()
            for _ in range(steps):
                batch = torch.randn(BATCH, WIDTH, generator=generator)
                began = time.perf_counter()
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if attached:
                    learner.step()
                if block >= 0:
                    times_s[attached].append(time.perf_counter() - began)
        after = learner.metrics()
    beat.over = True
    thread.join()
    found: dict[str, float] = {
        "rounds": after["gruppetto/round"] - before["gruppetto/round"],
        "mib_up": (after["gruppetto/bytes_up"] - before["gruppetto/bytes_up"]) / 2**20,
        "mib_down": (after["gruppetto/bytes_down"] - before["gruppetto/bytes_down"]) / 2**20,
    }
    for what, by_condition in (("step", times_s), ("held_up", beat.late_s)):
        for name, share in QUANTILES.items():
            for attached, whose in ((False, "plain"), (True, "attached")):
                found[f"{what}_{name}_{whose}_ms"] = 1e3 * quantile(by_condition[attached], share)
    return found


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(1000 * share) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uplinks", nargs="+", default=["fp32", "bf16", "int8", "int4"])
    parser.add_argument("--blocks", type=int, default=20, help="of each kind")
    parser.add_argument("--steps", type=int, default=50, help="in a block")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(Path(args.serve[0]), args.serve[1])
        return
    for uplink in args.uplinks:
        with tempfile.TemporaryDirectory() as state:
            command = [sys.executable, __file__, "--serve", state, uplink]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as syncer:
                assert syncer.stdout is not None
                try:
                    found = measure(syncer.stdout.readline().strip(), args.blocks, args.steps)
                finally:
                    syncer.terminate()
        if args.json:
            print(json.dumps({"uplink": uplink, **found}), flush=True)
            continue
        print(f"{uplink}: {found['rounds']:.0f} rounds, {found['mib_up']:.0f} MiB up, {found['mib_down']:.0f} MiB down")
        for what in ("step", "held_up"):
            for name in QUANTILES:
                plain, attached = found[f"{what}_{name}_plain_ms"], found[f"{what}_{name}_attached_ms"]
                print(
                    f"  {what.replace('_', ' '):8} {name:6} {plain:9.2f} ms alone {attached:9.2f} ms attached"
                    f"  ratio {attached / plain:5.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
