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
    "fp32": ("fp32", True, "fp32"),
    "bf16": ("bf16", True, "fp32"),
    "int8 + rest": ("int8", True, "fp32"),
    "int4 + rest": ("int4", True, "fp32"),
    "fp4-e3m0 + rest": ("fp4-e3m0", True, "fp32"),
    "int4 alone": ("int4", False, "fp32"),
    "fp4-e3m0 alone": ("fp4-e3m0", False, "fp32"),
    "fp32, bf16 down": ("fp32", True, "bf16"),
    "fp32, delta down": ("fp32", True, "delta"),
    "fp32, delta-int4 down": ("fp32", True, "delta-int4"),
    "int4 + rest, delta down": ("int4", True, "delta"),
    "int4 + rest, delta-int4 down": ("int4", True, "delta-int4"),
}
"""By name: the uplink, whether its rests are said later, and the downlink."""
DATA_PARALLEL_BITS, RING, PERIOD = 16.0, 2.0, 24


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

    uplink, feedback, downlink = RUNS[job.run]
    protocol = ProtocolSetting(
        num_learners=job.learners,
        rounds=job.rounds,
        sync_period=job.sync_period,
        num_fragments=job.sync_period,
        min_quorum=job.learners,
    )
    virtual = VirtualSetting(uplink=uplink, feedback=feedback, downlink=downlink, jitter=0.0)
    result = train_virtually(setting, data, protocol, virtual)
    return {"loss": result.loss, "participation": result.participation}


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """The table, over the seeds for which every run is there."""
    from gruppetto.numerics import CODECS, DOWNLINKS

    learners = jobs[0].learners
    seeds = sorted({job.seed for job in jobs if all(j.name in done for j in jobs if j.seed == job.seed)})
    lines = [
        "| encoding | bits up + down | held-out nats by seed | beside fp32, mean | worst | fewer up | both ways |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (codec, _, downlink) in RUNS.items():
        of_run = {job.seed: job for job in jobs if job.run == name}
        losses = [done[of_run[seed].name]["loss"] for seed in seeds]
        fp32 = {job.seed: done[job.name]["loss"] for job in jobs if job.run == "fp32" and job.seed in seeds}
        ratios = [loss / fp32[seed] - 1 for seed, loss in zip(seeds, losses, strict=True)]
        bits, down = CODECS[codec].bits, DOWNLINKS[downlink].usual.bits
        # A ring sends each gradient 2 · (M − 1) / M times in every step and receives it as often; here every element
        # goes up once in H steps, and comes down once.
        ring = RING * (learners - 1) / learners * DATA_PARALLEL_BITS * PERIOD
        told = ", ".join(f"{loss:.4f}" for loss in losses)
        mean, worst = (f"{r:+.2%}" for r in (statistics.fmean(ratios or [0.0]), max(ratios or [0.0], key=abs)))
        less = f"{ring / bits:.0f} times | {2 * ring / (bits + down):.0f} times"
        lines.append(f"| {name} | {bits:g} + {down:g} | {told} | {mean} | {worst} | {less} |")
    against = f"at H = {PERIOD}, against a ring all-reduce of bfloat16 gradients among {learners}"
    return "\n".join([*lines, "", f"{len(seeds)} seeds; fewer bytes {against}"])


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
