"""How fast the goodput simulator is: against hours, learners, chips and stride, with its memory.

Seconds are CPU time of this process; memory is the peak of a process of its own. ``python benchmarks/simulator.py
[--hours H] [--json]``
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from gruppetto.sim.goodput import fleet_of
from gruppetto.sim.scenario import Scenario


def measure(scenario: Scenario) -> dict[str, float]:
    fleet = fleet_of(scenario, 0)
    start = time.process_time()
    events = fleet.run()
    took_s = time.process_time() - start
    return {
        "chips": scenario.chips,
        "learners": scenario.learners,
        "hours": scenario.hours,
        "stride": scenario.stride,
        "cpu_s": took_s,
        "events": events,
        "events_per_s": events / took_s,
        "cpu_s_a_day": took_s * 24 / scenario.hours,
        "us_a_boundary": 1e6 * took_s / (scenario.learners * scenario.hours * 3600 / scenario.stride),
        "goodput": fleet.tally.goodput,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def scenarios(hours: float) -> list[Scenario]:
    full = Scenario(chips=2_400_000, learners=16, hours=hours)
    return [
        full,
        *(replace(full, learners=m, chips=150_000 * m) for m in (2, 4, 8, 16, 32)),
        *(replace(full, hours=hours * k) for k in (0.5, 2)),
        *(replace(full, chips=n) for n in (24_000, 240_000)),
        *(replace(full, stride=k) for k in (2, 4, 8, 16)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="of the plain scenario")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for scenario in scenarios(asked.hours):
        # A process of its own for each, so that peaks are its own.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            rows.append(pool.submit(measure, scenario).result())
        if not asked.json:
            r = rows[-1]
            if len(rows) == 1:
                print(
                    f"{'chips':>10} {'M':>3} {'hours':>6} {'stride':>6} {'CPU s':>7} {'s a day':>8} "
                    f"{'events/s':>9} {'µs/boundary':>12} {'MiB':>5} {'goodput':>8}"
                )
            print(
                f"{r['chips']:>10,} {r['learners']:>3} {r['hours']:>6g} {r['stride']:>6} {r['cpu_s']:>7.2f} "
                f"{r['cpu_s_a_day']:>8.1f} {r['events_per_s']:>9,.0f} {r['us_a_boundary']:>12.1f} "
                f"{r['peak_mib']:>5.0f} {r['goodput']:>8.3f}",
                flush=True,
            )
    if asked.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
