"""Which H, η, μ and apply mode suit a short run? The sweep behind the demo's preset.

Four learners in virtual time, one of them two times slower, as in the demo; 700 rounds. ``single`` and
``data-parallel`` at the same number of rounds frame the result.

    python experiments/demo_sweep.py --out experiments/results/demo_sweep.json

Results are written after every run; a second start does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import re
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

OUTER = ((0.4, 0.9), (0.7, 0.7), (0.7, 0.5), (1.0, 0.5), (1.0, 0.0))
"""(η, μ)."""


@dataclass(frozen=True)
class Job:
    """One run; ``mode`` is decoupled, single or data-parallel."""

    mode: str
    rounds: int
    seed: int
    cache: str
    sync_period: int = 0
    lr: float = 0.0
    momentum: float = 0.0
    apply: str = ""

    @property
    def name(self) -> str:
        how = f" H{self.sync_period} η{self.lr} μ{self.momentum} {self.apply}" if self.mode == "decoupled" else ""
        return f"{self.mode}{how} T{self.rounds} s{self.seed}"


def run(job: Job) -> float:
    """The held-out loss of the final model."""
    import torch

    torch.set_num_threads(1)
    from gruppetto.numerics.outer import OuterSetting
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.train.data import open_data
    from gruppetto.train.log import TrainLog
    from gruppetto.train.rivals import lockstep_data_parallel
    from gruppetto.train.setting import TrainSetting
    from gruppetto.train.virtual import VirtualSetting, train_virtually

    setting = TrainSetting(eval_every_rounds=job.rounds).seeded(job.seed)
    data = open_data(setting, Path(job.cache))
    if job.mode != "decoupled":
        learners = 1 if job.mode == "single" else 4
        with TrainLog(Path(job.cache) / f"{job.mode}.jsonl", clock=lambda: 0.0) as log:
            return lockstep_data_parallel(setting, data, num_learners=learners, rounds=job.rounds, log=log)[1].loss
    protocol = ProtocolSetting(
        num_learners=4,
        rounds=job.rounds,
        sync_period=job.sync_period,
        apply=job.apply,  # type: ignore[arg-type]
    )
    optimizer = "nesterov" if job.momentum else "sgd"
    outer = OuterSetting(optimizer=optimizer, lr=job.lr, momentum=job.momentum)
    return train_virtually(setting, data, protocol, VirtualSetting(outer=outer, step_s=(1.0, 1.0, 1.0, 2.0))).loss


def report(done: dict[str, Any], seeds: int, rounds: int) -> str:
    """All runs, best first, each the mean over its seeds."""
    rows: dict[str, list[float]] = {}
    for name, loss in done.items():
        how, _, seed = name.rpartition(" s")
        if f" T{rounds}" in how and int(seed) < seeds:
            rows.setdefault(how, []).append(loss)
    lines = ["| run | held-out nats | seeds |", "|---|---|---|"]
    for how, losses in sorted(rows.items(), key=lambda row: sum(row[1]) / len(row[1])):
        lines.append(f"| {how} | {sum(losses) / len(losses):.3f} | {len(losses)} |")
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=1)
    ask.add_argument("--rounds", type=int, default=700)
    ask.add_argument("--only", default="", help="a regular expression; runs whose name it does not find are left out")
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/demo_sweep.json"))
    args = ask.parse_args()
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [Job(mode, args.rounds, s, args.cache) for s in range(args.seeds) for mode in ("single", "data-parallel")]
    jobs += [
        Job("decoupled", args.rounds, seed, args.cache, period, lr, momentum, apply)
        for seed, period, (lr, momentum), apply in product(range(args.seeds), (8, 24), OUTER, ("overwrite", "carry"))
    ]
    todo = [job for job in jobs if job.name not in done and re.search(args.only, job.name)]
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, job): job for job in todo}
        for finished in as_completed(running):
            job = running[finished]
            done[job.name] = round(finished.result(), 4)
            args.out.write_text(json.dumps(dict(sorted(done.items())), indent=1, ensure_ascii=False) + "\n")
            print(f"{job.name}: {done[job.name]:.3f}", flush=True)
    print(report(done, args.seeds, args.rounds))


if __name__ == "__main__":
    main()
