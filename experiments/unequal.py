"""Unequal hardware: eight learners, four of them 18 % slower, all with 10 % jitter; who sets the pace, at what cost.

``K = 8`` waits for everybody, ``K = 1, no grace`` for nobody, and ``K = 1`` with the adaptive grace window for those
who cost nothing. Real tensors in virtual time, all runs as long in virtual seconds.

    python experiments/unequal.py --seeds 3 --rounds 240 --out experiments/results/unequal.json

Results are written after every run; a second start does only what is missing. ``--quick`` shows that it works.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LEARNERS, GAP = 8, 0.18
MODES = {"K = 8": (8, True), "K = 1, no grace": (1, False), "K = 1, grace": (1, True)}
"""Quorum, and whether the grace window is on."""
PERIOD = {"sync_period": 8, "num_fragments": 8}
"""A short run has few rounds: every fragment should have its turn often."""


@dataclass(frozen=True)
class Job:
    """One run of one seed."""

    mode: str
    seed: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.mode.replace(' ', '')}-T{self.rounds}-s{self.seed}"


def run(job: Job, cache: str) -> dict[str, Any]:
    """The held-out loss, and what the trace says."""
    import torch

    torch.set_num_threads(1)
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.trace.log import TraceWriter
    from gruppetto.trace.metrics import measure
    from gruppetto.train.data import open_data
    from gruppetto.train.setting import ModelSetting, TrainSetting
    from gruppetto.train.virtual import VirtualSetting, train_virtually

    quorum, grace = MODES[job.mode]
    # Whoever waits for the slower half makes fewer rounds in the same time.
    rounds = round(job.rounds / (1.0 + GAP)) if quorum == LEARNERS else job.rounds
    model = ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=64)
    setting = TrainSetting(model=model, batch_size=4, eval_every_rounds=rounds, eval_windows=256).seeded(job.seed)
    protocol = ProtocolSetting(
        num_learners=LEARNERS, start_learners=LEARNERS, rounds=rounds, min_quorum=quorum, grace=grace, **PERIOD
    )
    virtual = VirtualSetting(step_s=(1.0,) * (LEARNERS // 2) + (1.0 + GAP,) * (LEARNERS // 2))
    with tempfile.TemporaryDirectory() as place:
        with TraceWriter(Path(place) / "trace.jsonl", {}) as trace:
            result = train_virtually(setting, open_data(setting, Path(cache)), protocol, virtual, trace=trace)
        found = measure(Path(place) / "trace.jsonl")
    return {
        "loss": result.loss,
        "round_s": result.curve[-1].at_s / rounds,
        "goodput": found.goodput,
        "participation": found.participation,
        "merged": found.tokens["merged"] / found.tokens["consumed"],
        "ended_s": result.curve[-1].at_s,
    }


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """Means over seeds; the pace is that of rounds beside the fastest learner's steps."""
    from gruppetto.sim.tally import spread

    lines = ["| run | pace of rounds | taking part | tokens merged | goodput | held-out nats | seeds |"]
    lines.append("|---|---|---|---|---|---|---|")
    for mode in MODES:
        found = [done[j.name] for j in jobs if j.mode == mode and j.name in done]
        if found:
            mean = {key: spread([f[key] for f in found])[0] for key in found[0] if isinstance(found[0][key], float)}
            _, half = spread([f["loss"] for f in found])
            loss = f"{mean['loss']:.3f}" + (f" ± {half:.3f}" if half is not None else "")
            lines.append(
                f"| {mode} | {1 / mean['round_s']:.0%} | {mean['participation']:.0%} | {mean['merged']:.0%} | "
                f"{mean['goodput']:.1%} | {loss} | {len(found)} |"
            )
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=240)
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/unequal.json"))
    args = ask.parse_args()
    seeds, rounds = (1, 60) if args.quick else (args.seeds, args.rounds)
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [Job(mode, seed, rounds) for seed in range(seeds) for mode in MODES]
    todo = [job for job in jobs if job.name not in done]
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, job, args.cache): job for job in todo}
        for finished in as_completed(running):
            job = running[finished]
            done[job.name] = {**asdict(job), **finished.result()}
            args.out.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")
            print(f"{len(done)}/{len(jobs)}: {job.name} loss {done[job.name]['loss']:.3f}", flush=True)
    print(report(done, jobs))


if __name__ == "__main__":
    main()
