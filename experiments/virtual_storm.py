"""What a storm of failures costs in held-out loss: eight learners in virtual time, kills drawn from the seed.

``calm`` has none; ``storm`` has 31.25 kills an hour (125 an hour for 32 learners, scaled to eight), ``storm-8x`` 250.
A killed learner loses its work since the last value that it received, is away for an exponentiated-Weibull time with a
mean of a minute, and comes back with a peer's optimizer state. ``elastic``, ``data-parallel`` and ``diloco`` go through
the very same kills, on as many tokens as the calm run has.

    python experiments/virtual_storm.py --seeds 5 --rounds 600 --out experiments/results/virtual_storm.json

Results are written after every run; a second start does only what is missing. ``--quick`` shows within two minutes that
it works.
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

LEARNERS = 8
PER_HOUR = {"calm": 0.0, "storm": 31.25, "storm-8x": 250.0}
RIVALS = ("elastic", "data-parallel", "diloco")
MEAN_AWAY_S = 60.0


@dataclass(frozen=True)
class Job:
    """One run of one seed."""

    system: str
    weather: str
    seed: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.system}-{self.weather}-T{self.rounds}-s{self.seed}"


def run(job: Job, cache: str) -> dict[str, Any]:
    """Loss at the end, when that was, and what the trace says."""
    import torch

    torch.set_num_threads(1)
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.sim.failures import Recovery
    from gruppetto.sim.mishaps import draw_kills
    from gruppetto.trace.log import TraceWriter
    from gruppetto.trace.metrics import measure
    from gruppetto.train.data import open_data
    from gruppetto.train.setting import ModelSetting, TrainSetting
    from gruppetto.train.virtual import VirtualSetting, train_virtually
    from gruppetto.train.virtual_rivals import train_rival
    from gruppetto.train.virtual_setting import name_of

    model = ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=64)
    setting = TrainSetting(model=model, batch_size=4, eval_every_rounds=job.rounds // 10, eval_windows=256)
    setting = setting.seeded(job.seed)
    data = open_data(setting, Path(cache))
    protocol = ProtocolSetting(num_learners=LEARNERS, start_learners=LEARNERS, rounds=job.rounds)
    # Two parameters of shape; the scale makes the mean a minute.
    away = Recovery(scale_s=MEAN_AWAY_S * 2190.0 / 2400.0, shape=1.5, power=1.5)
    kills = draw_kills(
        [name_of(m) for m in range(LEARNERS)],
        per_hour=PER_HOUR[job.weather],
        lasts_s=20.0 * job.rounds,
        seed=job.seed,
        recovery=away,
    )
    virtual = VirtualSetting(mishaps=kills)
    if job.system != "decoupled":
        rival = train_rival(job.system, setting, data, protocol, virtual)  # type: ignore[arg-type]
        curve = [[p.at_s, p.consumed, p.loss] for p in rival.curve]
        return {"loss": rival.loss, "ended_s": rival.ended_s, "goodput": rival.goodput, "curve": curve}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "trace.jsonl"
        with TraceWriter(path, {}) as trace:
            result = train_virtually(setting, data, protocol, virtual, trace=trace)
        found = measure(path)
    assert found.balanced and found.replay is not None and found.replay.identical
    return {
        "loss": result.loss,
        "ended_s": result.curve[-1].at_s,
        "goodput": found.goodput,
        "uptime": found.uptime,
        "participation": found.participation,
        "tokens": found.tokens,
        "deaths": len(found.deaths),
        "sources": sorted({r.source.split()[0] for r in found.recoveries}),
        "curve": [[p.at_s, p.consumed, p.loss] for p in result.curve],
    }


def report(done: dict[str, Any], jobs: list[Job]) -> str:
    """Loss above that of the calm run of the same seed, and the rest, over the seeds that are there."""
    from gruppetto.sim.tally import spread

    def text(values: list[float], form: str = ".1%") -> str:
        mean, half = spread(values)
        return format(mean, form) + (f" ± {half:{form.lstrip('+')}}" if half is not None else "")

    lines = [
        "| run | deaths | loss beside the calm run | goodput | takes, beside calm | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for system, weather in dict.fromkeys((job.system, job.weather) for job in jobs):
        seeds = [j for j in jobs if (j.system, j.weather) == (system, weather) and j.name in done]
        calm = {j.seed: done.get(Job("decoupled", "calm", j.seed, j.rounds).name) for j in seeds}
        both = [(done[j.name], calm[j.seed]) for j in seeds if calm[j.seed] is not None]
        if not both:
            continue
        losses = text([mine["loss"] / other["loss"] - 1 for mine, other in both], "+.2%")
        goodput = text([mine["goodput"] for mine, _ in both])
        times = text([mine["ended_s"] / other["ended_s"] for mine, other in both], ".3f")
        deaths = sum(mine.get("deaths", 0) for mine, _ in both) / len(both)
        lines.append(f"| {system}, {weather} | {deaths:.1f} | {losses} | {goodput} | {times} | {len(both)} |")
    return "\n".join(lines)


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--seeds", type=int, default=5)
    ask.add_argument("--rival-seeds", type=int, default=2)
    ask.add_argument("--rounds", type=int, default=600)
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--cache", default=".cache/experiments")
    ask.add_argument("--out", type=Path, default=Path("experiments/results/virtual_storm.json"))
    args = ask.parse_args()
    seeds, rounds, rival_seeds = (1, 60, 1) if args.quick else (args.seeds, args.rounds, args.rival_seeds)
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    jobs = [Job("decoupled", weather, seed, rounds) for seed in range(seeds) for weather in PER_HOUR]
    jobs += [
        Job(system, weather, seed, rounds) for seed in range(rival_seeds) for weather in PER_HOUR for system in RIVALS
    ]
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
