"""What one learner that sends NaN and one that sends everything a thousand times too long do to six healthy ones.

Every run has the same model, data slots and number of rounds, under the shipping cores in virtual time. ``six`` is the
six healthy learners alone; in all others the two bad ones ride along: with the gate as it is by default (``clip``),
refusing (``reject``) or off (``off``; what is not finite is refused even then), and with the gate off and a robust
merge rule for every tensor (``trimmed``, ``median``, ``clipped-rda``).

    python experiments/hostile.py --seeds 3 --rounds 240 --out experiments/results/hostile.json

Results are written after every run; a second start does only what is missing. One process, one thread.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gruppetto.train.data import Data
    from gruppetto.train.setting import TrainSetting

HEALTHY, BAD = 6, ((6, math.nan), (7, 1000.0))
MODES = ("six", "clip", "reject", "off", "trimmed", "median", "clipped-rda")
RUINED = 2.0
"""A loss so many times that of the healthy ones, or none at all."""


@dataclass(frozen=True)
class Job:
    """One run of one seed."""

    mode: str
    seed: int
    rounds: int
    sync_period: int

    @property
    def name(self) -> str:
        return f"{self.mode}-H{self.sync_period}-T{self.rounds}-s{self.seed}"


def run(job: Job, setting: TrainSetting, data: Data) -> dict[str, Any]:
    """The held-out loss of the final model (null if it is no number), and what the gate did."""
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.train.virtual import VirtualSetting, train_virtually

    with_bad = job.mode != "six"
    protocol = ProtocolSetting(
        num_learners=HEALTHY + len(BAD) * with_bad,
        num_slots=16,
        rounds=job.rounds,
        sync_period=job.sync_period,
        num_fragments=job.sync_period,
        norm_gate=job.mode if job.mode in ("clip", "reject") else "clip" if not with_bad else "off",  # type: ignore[arg-type]
    )
    robust = job.mode in ("trimmed", "median", "clipped-rda")
    virtual = VirtualSetting(spoilt=BAD if with_bad else (), merge=((".*", job.mode),) if robust else ())
    result = train_virtually(setting, data, protocol, virtual)
    core = result.world.syncer
    return {
        "loss": result.loss if math.isfinite(result.loss) else None,
        "rejected": dict(sorted(core.rejected.items())),
        "clipped": dict(sorted(core.clipped.items())),
        "cosines": {str(m.learner): m.heading.mean for m in core.members if m.heading.count},
    }


def ratio_to_six(done: dict[str, Any], job: Job) -> float:
    """The loss of a run by that of the healthy learners alone; infinite if it has none."""
    six = done[Job("six", job.seed, job.rounds, job.sync_period).name]["loss"]
    loss = done[job.name]["loss"]
    return math.inf if loss is None else float(loss / six)


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """The table, over the seeds for which every mode is there."""
    seeds = sorted({job.seed for job in jobs if all(j.name in done for j in jobs if j.seed == job.seed)})
    lines = ["| run | held-out nats by seed | beside the six alone | refused | clipped |", "|---|---|---|---|---|"]
    for mode in MODES:
        of_mode = [job for job in jobs if job.mode == mode and job.seed in seeds]
        found = [done[job.name] for job in of_mode]
        losses = ", ".join("no number" if f["loss"] is None else f"{f['loss']:.3f}" for f in found)
        ratios = [ratio_to_six(done, job) for job in of_mode]
        beside = "ruined" if max(ratios) > RUINED else f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"
        counts = [", ".join(f"{n} {why}" for why, n in found[0][what].items()) for what in ("rejected", "clipped")]
        lines.append(f"| {mode} | {losses} | {beside} | {counts[0]} | {counts[1]} |")
    return "\n".join([*lines, "", f"{len(seeds)} seeds; the counts are of the first"])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=240)
    ask.add_argument("--sync-period", type=int, default=8)
    ask.add_argument("--quick", action="store_true", help="one short seed, to see that it works")
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/hostile.json"))
    args = ask.parse_args()
    if args.quick:
        args.seeds, args.rounds = 1, 24
    import torch

    from gruppetto.train.data import open_data
    from gruppetto.train.setting import TrainSetting

    torch.set_num_threads(1)
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [Job(mode, seed, args.rounds, args.sync_period) for seed in range(args.seeds) for mode in MODES]
    for job in (job for job in jobs if job.name not in done):
        setting = TrainSetting(eval_every_rounds=job.rounds, eval_windows=256).seeded(job.seed)
        done[job.name] = {**asdict(job), **run(job, setting, open_data(setting, Path(args.cache)))}
        args.out.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")
        print(f"{job.name}: loss {done[job.name]['loss']}", flush=True)
    print(report(done, jobs))


if __name__ == "__main__":
    main()
