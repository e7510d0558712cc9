"""How long does a quick look at everything take? Processor time of a step of each kind, times the steps of all runs.

    python experiments/quick_cost.py [--workers 2]

Processor time of short runs, so that it hardly depends on what else the machine does. A run of real processes waits
more than it computes: of those the time of the clock that is on record counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from gruppetto.experiments.budget import steps_of
from gruppetto.experiments.catalogue import EXPERIMENTS
from gruppetto.experiments.experiment import Scale
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.riding import ride

SHORT, LONG = 8, 88
"""Rounds of the two runs of which the difference is a step's."""
DATA = {"vit": "shapes", "captioner": "captions"}
REAL_S = {"processes": 15.0, "race": 25.0}
"""A run of real processes on two free cores, by the clock; ``race`` of ours, where nobody has fetched other systems."""


def cost_of(kind: tuple[str, int], cache: Path) -> tuple[float, float]:
    """Seconds of the processor: of a step, and of what a run takes besides."""
    model, batch = kind
    base = Ride(model=model, batch=batch, data=DATA.get(model, "python-stdlib"), learners=2)
    base = base.but(sync_period=4, fragments=4)
    ride(base.but(rounds=SHORT), cache)  # what is compiled and imported once
    took = []
    for rounds in (SHORT, LONG):
        began = time.process_time()
        ride(base.but(rounds=rounds), cache)
        took.append(time.process_time() - began)
    step_s = (took[1] - took[0]) / (2 * (LONG - SHORT))
    return step_s, max(0.0, took[0] - 2 * SHORT * step_s)


def main(workers: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        scale, costs, total_s = Scale(quick=True, cache=Path(place)), dict[tuple[str, int], tuple[float, float]](), 0.0
        for experiment in EXPERIMENTS.values():
            rides = experiment.rides(scale)
            by_kind: dict[tuple[str, int], list[float]] = defaultdict(list)
            took_s = sum(workers * REAL_S.get(asked.system, 0.0) for asked in rides)
            for asked in rides:
                if asked.system not in REAL_S:
                    by_kind[asked.model, asked.batch].append(steps_of(asked))
            for kind, steps in by_kind.items():
                if kind not in costs:
                    costs[kind] = cost_of(kind, Path(place))
                step_s, besides_s = costs[kind]
                took_s += sum(steps) * step_s + len(steps) * besides_s
            total_s += took_s
            print(f"{experiment.name:<16} {len(rides):>3} runs {took_s / 60:6.1f} min of a core", flush=True)
        for (model, batch), (step_s, besides_s) in costs.items():
            print(f"a step of {model}, batch {batch}: {1e3 * step_s:.1f} ms; a run besides: {besides_s:.1f} s")
        print(f"all: {total_s / 60:.0f} min of a core, {total_s / 60 / workers:.0f} min with {workers} workers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    main(parser.parse_args().workers)
