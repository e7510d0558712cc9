"""What guests are worth: four learners, and for part of the run as many more (+100 %) or three times as many (+300 %).

Guests are there for a quarter of the plain run's time (+100 %) or an eighth (+300 %), in three visits, as spare
machines come and go; where letting them in and out cost nothing, the same tokens would take 0.75 and 0.625 of the time.
Decoupled guests take a peer's state and leave on notice. ``elastic`` is data parallel, which pauses to take guests in
and to let them go (10 s each, the constants of docs/simulator.md, at a step of 1 s). Time is virtual; every run is as
many tokens long as the plain one of its system, with the learning rate annealed to its end.

    python experiments/scavenging.py --seeds 3 --rounds 240 --out experiments/results/scavenging.json

Results are written after every run; a second start does only what is missing. ``--quick`` shows that it works.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LEARNERS, VISITS = 4, 3
SHARES = {"plain": (0, 0.0), "+100 %": (LEARNERS, 0.25), "+300 %": (3 * LEARNERS, 0.125)}
"""Guests at a time, and for which part of the plain run's time."""
SYSTEMS = ("decoupled", "elastic")
PERIOD = {"sync_period": 8, "num_fragments": 8}
"""A short run has few rounds: every fragment should have its turn often."""


@dataclass(frozen=True)
class Job:
    """One run of one seed."""

    system: str
    guests: str
    seed: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.system}-{self.guests.replace(' %', '')}-T{self.rounds}-s{self.seed}"


def visits(guests: int, share: float, rounds: int) -> list[tuple[str, float, float]]:
    """(name, from, to): every visit is by machines that were never there before."""
    whole_s = float(rounds)  # a step takes a second
    ideal_s = whole_s * (1.0 - share * guests / LEARNERS)
    lasts_s, every_s = whole_s * share / VISITS, ideal_s / VISITS
    return [
        (f"guest-{visit}-{i}", (visit + 0.5) * every_s - lasts_s / 2, (visit + 0.5) * every_s + lasts_s / 2)
        for visit in range(VISITS if guests else 0)
        for i in range(guests)
    ]


def run(job: Job, cache: str) -> dict[str, Any]:
    """The curve: (virtual seconds, tokens of all, held-out loss)."""
    import torch

    torch.set_num_threads(1)
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.train.data import open_data
    from gruppetto.train.setting import ModelSetting, TrainSetting
    from gruppetto.train.virtual import Guest, VirtualSetting, train_virtually
    from gruppetto.train.virtual_rivals import train_rival

    model = ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=64)
    guests, share = SHARES[job.guests]
    ideal = round(job.rounds * (1.0 - share * guests / LEARNERS))
    setting = TrainSetting(model=model, batch_size=4, eval_every_rounds=max(1, ideal // 30), eval_windows=128)
    setting = setting.seeded(job.seed)
    data = open_data(setting, Path(cache))
    there = tuple(Guest(name=n, joins_s=a, leaves_s=b) for n, a, b in visits(guests, share, job.rounds))
    virtual = VirtualSetting(guests=there)
    slots = LEARNERS + 3 * LEARNERS * VISITS
    shape = {"num_learners": LEARNERS, "start_learners": LEARNERS, "num_slots": slots, **PERIOD}
    if job.system == "elastic":
        result = train_rival("elastic", setting, data, ProtocolSetting(rounds=job.rounds, **shape), virtual)
        curve = result.curve
    else:
        curve = train_virtually(setting, data, ProtocolSetting(rounds=ideal, **shape), virtual).curve
    return {"curve": [[p.at_s, p.consumed, p.loss] for p in curve], "merged": curve[-1].merged / curve[-1].consumed}


def time_to_tokens(curve: list[list[float]], tokens: float) -> float:
    """Virtual seconds; a run that ends a little before goes on at its mean pace."""
    before = [0.0, 0.0]
    for at_s, consumed, _ in curve:
        if consumed >= tokens:
            return before[0] + (at_s - before[0]) * (tokens - before[1]) / (consumed - before[1])
        before = [at_s, consumed]
    return before[0] * tokens / before[1]


def time_to_loss(curve: list[list[float]], loss: float) -> float:
    """When it is first reached, between two evaluations."""
    for (t0, _, before), (t1, _, after) in pairwise(curve):
        if after <= loss:
            return t0 + (t1 - t0) * (before - loss) / (before - after)
    return float("inf")


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """Times beside the plain run of the same system and seed."""
    from gruppetto.sim.tally import spread

    lines = ["| run | time to the tokens of the plain run | loss there, beside plain | time to a loss of all | seeds |"]
    lines.append("|---|---|---|---|---|")
    for system in SYSTEMS:
        seeds = sorted({j.seed for j in jobs if all(k.name in done for k in jobs if k.seed == j.seed)})
        for guests in SHARES:
            tokens, losses, reached = [], [], []
            for seed in seeds:
                of_seed = {j.guests: done[j.name] for j in jobs if (j.system, j.seed) == (system, seed)}
                plain, mine = of_seed["plain"]["curve"], of_seed[guests]["curve"]
                goal = 1.005 * max(each["curve"][-1][2] for each in of_seed.values())
                tokens.append(time_to_tokens(mine, plain[-1][1]) / plain[-1][0])
                losses.append(mine[-1][2] / plain[-1][2] - 1.0)
                reached.append(time_to_loss(mine, goal) / time_to_loss(plain, goal))
            if seeds:
                cells = [spread(tokens)[0], spread(losses)[0], spread(reached)[0]]
                row = f"| {system}, {guests} | {cells[0]:.2f} | {cells[1]:+.1%} | {cells[2]:.2f} | {len(seeds)} |"
                lines.append(row)
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--rounds", type=int, default=240)
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/scavenging.json"))
    args = ask.parse_args()
    seeds, rounds = (1, 96) if args.quick else (args.seeds, args.rounds)
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [Job(system, guests, seed, rounds) for seed in range(seeds) for system in SYSTEMS for guests in SHARES]
    todo = [job for job in jobs if job.name not in done]
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(run, job, args.cache): job for job in todo}
        for finished in as_completed(running):
            job = running[finished]
            done[job.name] = {**asdict(job), **finished.result()}
            args.out.write_text(json.dumps(dict(sorted(done.items())), indent=1) + "\n")
            print(f"{len(done)}/{len(jobs)}: {job.name} loss {done[job.name]['curve'][-1][2]:.3f}", flush=True)
    print(report(done, jobs))


if __name__ == "__main__":
    main()
