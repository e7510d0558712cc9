"""Which constants, not printed in the paper, explain its table of goodput?

One set for all cells. A learner of M on N chips is an elastic job on N/M of them, so that nine jobs stand for all
elastic and decoupled cells; the job without elasticity has two constants of its own. Coordinate descent on the largest
error over all cells, ties by the mean square, under common random numbers; every point that was tried is kept.

    python experiments/fit_goodput.py --days 4 --out experiments/results/fit_goodput.json

A second start goes on where the first one stopped. One process; about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from gruppetto.sim.elastic import ElasticCosts, ElasticJob
from gruppetto.sim.failures import YEAR_S, Cause, Recovery, draw_faults
from gruppetto.sim.paper import GOODPUT
from gruppetto.sim.rivals import RestartCosts, data_parallel, elastic

SLICE_CHIPS = 256
"""Only slice size times mean recovery shows in the table: the slice is set, the recovery is fitted."""
ELASTIC = {
    "recovery_s": (600, 900, 1200, 1500, 1800, 2100, 2400, 2700),
    "scale_down_s": (5, 7.5, 10, 12.5, 15, 17.5),
    "scale_up_s": (2.5, 5, 7.5, 10, 12.5, 15),
}
RESTART = {"restart_s": (55, 60, 65, 70, 75, 80), "checkpoint_s": (1, 2, 5, 10, 20)}
SHAPE = POWER = 1.5


def recovery_of_mean(mean_s: float) -> Recovery:
    """The exponentiated Weibull of this mean."""
    unit = Recovery(scale_s=1.0, shape=SHAPE, power=POWER).mean_s
    return Recovery(scale_s=mean_s / unit, shape=SHAPE, power=POWER)


def errors_elastic(point: dict[str, float], days: float, seed: int) -> dict[str, float]:
    """Ours minus the paper's, in points, for every elastic and decoupled cell."""
    costs = ElasticCosts(slice_chips=SLICE_CHIPS, scale_down_s=point["scale_down_s"], scale_up_s=point["scale_up_s"])
    cause = Cause(name="chip", mtbi_s=YEAR_S, recovery=recovery_of_mean(point["recovery_s"]))
    ours: dict[int, float] = {}
    found = {}
    for (system, learners), row in GOODPUT.items():
        if system == "data-parallel":
            continue
        for chips, goodput in row.items():
            share = chips // learners
            if share not in ours:
                job = ElasticJob(
                    first_chip=0, chips=share, faults=draw_faults([cause], chips=share, seed=seed), costs=costs
                )
                ours[share] = elastic(job, step_s=1.0, horizon_s=days * 86_400).goodput
            found[f"{system} M={learners} N={chips}"] = 100 * (ours[share] - goodput)
    return found


def errors_restart(point: dict[str, float], days: float, seed: int) -> dict[str, float]:
    """The same for the job without elasticity."""
    costs = RestartCosts(restart_s=point["restart_s"], checkpoint_s=point["checkpoint_s"])
    cause = Cause(name="chip", mtbi_s=YEAR_S, recovery=recovery_of_mean(1500))
    found = {}
    for chips, goodput in GOODPUT["data-parallel", 1].items():
        faults = draw_faults([cause], chips=chips, seed=seed)
        tally = data_parallel(faults, chips=chips, horizon_s=days * 86_400, costs=costs)
        found[f"data-parallel N={chips}"] = 100 * (tally.goodput - goodput)
    return found


def badness(errors: dict[str, float]) -> tuple[float, float]:
    return max(abs(e) for e in errors.values()), math.fsum(e * e for e in errors.values()) / len(errors)


Errors = Callable[[dict[str, float], float, int], dict[str, float]]
"""What a point misses, over so many days and with that seed."""


class Search:
    """Remembers every point that was tried."""

    def __init__(self, out: Path, days: float, seed: int) -> None:
        self.out, self.days, self.seed = out, days, seed
        self.tried: dict[str, dict[str, float]] = json.loads(out.read_text())["tried"] if out.exists() else {}

    def errors(self, what: Errors, point: dict[str, float]) -> dict[str, float]:
        key = f"days={self.days:g} seed={self.seed} " + " ".join(f"{k}={v:g}" for k, v in sorted(point.items()))
        if key not in self.tried:
            self.tried[key] = {name: round(e, 3) for name, e in what(point, self.days, self.seed).items()}
            self.save({})
            print(f"{len(self.tried)} {key}: largest error {badness(self.tried[key])[0]:.2f}", flush=True)
        return self.tried[key]

    def descend(self, what: Errors, axes: Mapping[str, tuple[float, ...]], point: dict[str, float]) -> dict[str, float]:
        while True:
            before = dict(point)
            for name, values in axes.items():
                point = min(({**point, name: value} for value in values), key=lambda p: badness(self.errors(what, p)))
            if point == before:
                return point

    def save(self, best: dict[str, object]) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps({**best, "tried": self.tried}, indent=1, sort_keys=True) + "\n")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--days", type=float, default=4.0)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--out", type=Path, default=Path("experiments/results/fit_goodput.json"))
    args = ask.parse_args()
    search = Search(args.out, args.days, args.seed)
    start = {"recovery_s": 1500.0, "scale_down_s": 10.0, "scale_up_s": 10.0}
    elastic_best = search.descend(errors_elastic, ELASTIC, start)
    restart_best = search.descend(errors_restart, RESTART, {"restart_s": 70.0, "checkpoint_s": 5.0})
    fit = {
        "elastic": elastic_best,
        "restart": restart_best,
        "errors": search.errors(errors_elastic, elastic_best) | search.errors(errors_restart, restart_best),
    }
    search.save({"fit": fit})
    print(json.dumps(fit, indent=1))


if __name__ == "__main__":
    main()
