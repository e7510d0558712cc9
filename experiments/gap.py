"""How much of the gap between one learner and data parallel do decoupled learners close?

For every seed three runs on the same model, data slots and number of rounds T: ``single`` (one learner),
``data-parallel`` (M learners, gradients averaged every step) and ``decoupled`` (M learners under the shipping
cores, in virtual time, outer optimizer ``auto``). The share closed is (single − decoupled) / (single −
data-parallel), in held-out nats.

    python experiments/gap.py --seeds 5 --rounds 1500 --out experiments/results/gap.json

Results are written after every run; a second start does only what is missing. Two processes, one thread each.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

MODES = ("single", "data-parallel", "decoupled")
STUDENT_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Two-sided 95 % quantiles of Student's t by sample size."""


@dataclass(frozen=True)
class Job:
    """One run of one seed."""

    mode: str
    seed: int
    rounds: int
    learners: int
    sync_period: int
    apply: str
    cache: str

    @property
    def name(self) -> str:
        tail = f"-H{self.sync_period}-{self.apply}" if self.mode == "decoupled" else ""
        return f"{self.mode}{tail}-M{self.learners}-T{self.rounds}-s{self.seed}"


def run(job: Job) -> dict[str, Any]:
    """The held-out loss of the final model; for the decoupled run also who took part."""
    import torch

    torch.set_num_threads(1)
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.train.data import open_data
    from gruppetto.train.log import TrainLog
    from gruppetto.train.rivals import lockstep_data_parallel
    from gruppetto.train.setting import TrainSetting
    from gruppetto.train.virtual import train_virtually

    setting = TrainSetting(eval_every_rounds=job.rounds, eval_windows=512).seeded(job.seed)
    data = open_data(setting, Path(job.cache))
    if job.mode == "decoupled":
        protocol = ProtocolSetting(
            num_learners=job.learners,
            rounds=job.rounds,
            sync_period=job.sync_period,
            apply=job.apply,  # type: ignore[arg-type]
        )
        result = train_virtually(setting, data, protocol)
        ledger = result.world.syncer.ledger.in_tokens()
        return {
            "loss": result.loss,
            "participation": result.participation,
            "outer": result.outer_reason,
            "merged": ledger["merged"] / ledger["consumed"],
        }
    learners = 1 if job.mode == "single" else job.learners
    with TrainLog(Path(job.cache) / f"{job.name}.jsonl", clock=lambda: 0.0) as log:
        _, found = lockstep_data_parallel(setting, data, num_learners=learners, rounds=job.rounds, log=log)
    return {"loss": found.loss}


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval."""
    n, mean = len(values), sum(values) / len(values)
    if n < 2:
        return mean, math.nan
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, STUDENT_95.get(n, 1.96) * deviation / math.sqrt(n)


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """The table, over the seeds for which every mode is there."""
    by_seed: dict[int, dict[str, float]] = {}
    for job in jobs:
        if job.name in done:
            by_seed.setdefault(job.seed, {})[job.mode] = done[job.name]["loss"]
    whole = {seed: losses for seed, losses in sorted(by_seed.items()) if len(losses) == len(MODES)}
    if not whole:
        return "no seed is complete yet"
    lines = ["| mode | held-out nats, mean ± 95 % | seeds |", "|---|---|---|"]
    for mode in MODES:
        mean, half = spread([losses[mode] for losses in whole.values()])
        lines.append(f"| {mode} | {mean:.3f} ± {half:.3f} | {len(whole)} |")
    shares = [
        (losses["single"] - losses["decoupled"]) / (losses["single"] - losses["data-parallel"])
        for losses in whole.values()
    ]
    mean, half = spread(shares)
    each = ", ".join(f"{share:.0%}" for share in shares)
    lines.append(f"\nshare of the gap closed: {mean:.0%} ± {half:.0%} (per seed: {each})")
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=5)
    ask.add_argument("--rounds", type=int, default=1500)
    ask.add_argument("--learners", type=int, default=4)
    ask.add_argument("--sync-period", type=int, default=24)
    ask.add_argument("--apply", default="overwrite", choices=("overwrite", "blend", "carry"))
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/gap.json"))
    args = ask.parse_args()
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [
        Job(mode, seed, args.rounds, args.learners, args.sync_period, args.apply, args.cache)
        for seed in range(args.seeds)
        for mode in MODES
    ]
    todo = [job for job in jobs if job.name not in done]
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, job): job for job in todo}
        for finished in as_completed(running):
            job = running[finished]
            done[job.name] = {**asdict(job), **finished.result()}
            del done[job.name]["cache"]
            args.out.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")
            print(f"{len(todo)} runs, just done: {job.name} loss {done[job.name]['loss']:.3f}", flush=True)
    print(report(done, jobs))


if __name__ == "__main__":
    main()
