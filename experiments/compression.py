"""What coarse contributions cost in quality, with and without saying later what an encoding leaves unsaid.

Every run has the same model, data slots, learners and number of rounds, under the shipping cores in virtual time; only
the encoding of the contributions differs. ``+rest``: what is left unsaid goes into the next contribution, as it ships;
``alone``: it is lost.

    python experiments/compression.py --seeds 3 --rounds 240 --out experiments/results/compression.json
    python experiments/compression.py --quick

Results are written after every run; a second start does only what is missing. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gruppetto.train.data import Data
    from gruppetto.train.setting import TrainSetting

RUNS = {
    "fp32": ("fp32", True),
    "bf16": ("bf16", True),
    "int8 + rest": ("int8", True),
    "int4 + rest": ("int4", True),
    "fp4-e3m0 + rest": ("fp4-e3m0", True),
    "int4 alone": ("int4", False),
    "fp4-e3m0 alone": ("fp4-e3m0", False),
}
"""By name: the uplink, and whether its rests are said later."""
DATA_PARALLEL_BITS, PERIOD = 16.0, 24


@dataclass(frozen=True)
class Job:
    """One run of one seed."""

    run: str
    seed: int
    rounds: int
    sync_period: int
    learners: int

    @property
    def name(self) -> str:
        return f"{self.run}-M{self.learners}-H{self.sync_period}-T{self.rounds}-s{self.seed}"


def run(job: Job, setting: TrainSetting, data: Data) -> dict[str, Any]:
    """The held-out loss of the final model."""
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.train.virtual import VirtualSetting, train_virtually

    uplink, feedback = RUNS[job.run]
    protocol = ProtocolSetting(
        num_learners=job.learners,
        rounds=job.rounds,
        sync_period=job.sync_period,
        num_fragments=job.sync_period,
        min_quorum=job.learners,
    )
    result = train_virtually(setting, data, protocol, VirtualSetting(uplink=uplink, feedback=feedback, jitter=0.0))
    return {"loss": result.loss, "participation": result.participation}


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """The table, over the seeds for which every run is there."""
    from gruppetto.numerics.codec import CODECS

    seeds = sorted({job.seed for job in jobs if all(j.name in done for j in jobs if j.seed == job.seed)})
    lines = [
        "| uplink | bits an element | held-out nats by seed | beside fp32, mean | worst | less than data parallel |",
        "|---|---|---|---|---|---|",
    ]
    for name, (codec, _) in RUNS.items():
        of_run = {job.seed: job for job in jobs if job.run == name}
        losses = [done[of_run[seed].name]["loss"] for seed in seeds]
        fp32 = {job.seed: done[job.name]["loss"] for job in jobs if job.run == "fp32" and job.seed in seeds}
        ratios = [loss / fp32[seed] - 1 for seed, loss in zip(seeds, losses, strict=True)]
        bits = CODECS[codec].bits
        # Every gradient of every step, against every element once in H steps.
        less = DATA_PARALLEL_BITS * PERIOD / bits
        told = ", ".join(f"{loss:.4f}" for loss in losses)
        mean, worst = (f"{r:+.2%}" for r in (statistics.fmean(ratios or [0.0]), max(ratios or [0.0], key=abs)))
        lines.append(f"| {name} | {bits:g} | {told} | {mean} | {worst} | {less:.0f} times |")
    return "\n".join([*lines, "", f"{len(seeds)} seeds; bytes up, at H = {PERIOD}, against gradients in bfloat16"])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=240)
    ask.add_argument("--sync-period", type=int, default=8)
    ask.add_argument("--learners", type=int, default=4)
    ask.add_argument("--quick", action="store_true", help="one seed, 48 rounds")
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/compression.json"))
    args = ask.parse_args()
    import torch

    from gruppetto.train.data import open_data
    from gruppetto.train.setting import TrainSetting

    torch.set_num_threads(1)
    if args.quick:
        args.seeds, args.rounds = 1, 48
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [
        Job(name, seed, args.rounds, args.sync_period, args.learners) for seed in range(args.seeds) for name in RUNS
    ]
    for job in (job for job in jobs if job.name not in done):
        setting = TrainSetting(eval_every_rounds=job.rounds, eval_windows=256).seeded(job.seed)
        done[job.name] = {**asdict(job), **run(job, setting, open_data(setting, Path(args.cache)))}
        args.out.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")
        print(f"{job.name}: loss {done[job.name]['loss']:.4f}", flush=True)
    print(report(done, jobs))


if __name__ == "__main__":
    main()
