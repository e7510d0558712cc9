"""What kills cost in loss and in time: decoupled learners and their rivals under the very same ones.

A killed learner loses its work since the last value that it received, is away for an exponentiated-Weibull time with a
mean of a minute, and comes back with a peer's optimizer state. Rivals go through the same kills, on as many tokens as
the calm run has.
"""

from __future__ import annotations

from itertools import product

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, beside, figure
from gruppetto.experiments.guests import time_to_loss
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["FAULTS"]

LEARNERS = 8
PER_HOUR = {"calm": 0.0, "storm": 31.25, "storm × 8": 250.0}
"""125 an hour for 32 learners, scaled to eight; and eight times as many."""
SYSTEMS = ("decoupled", "elastic", "data-parallel", "diloco")
NEAR = 1.1


def _arms(scale: Scale) -> list[Arm]:
    base = Ride(learners=LEARNERS, rounds=scale.pick(240, 1500), evaluations=10, sync_period=24, fragments=24)
    return [
        Arm(
            name=f"{system}, {weather}",
            ride=base.but(system=system, kills_per_hour=per_hour, books=system == "decoupled"),
            beside="decoupled, calm",
        )
        for system, (weather, per_hour) in product(SYSTEMS, PER_HOUR.items())
    ]


def _time(mine: Result, calm: Result | None) -> float | None:
    return None if calm is None else float(mine["ended_s"] / calm["ended_s"])


def _to_loss(mine: Result, calm: Result | None) -> float | None:
    """Seconds to a loss near that of the calm run, beside the calm run's; None if it is never reached."""
    if calm is None:
        return None
    goal = NEAR * calm["loss"]
    taken_s = time_to_loss(mine["curve"], goal) / time_to_loss(calm["curve"], goal)
    return taken_s if taken_s < float("inf") else None


def _orderings(scale: Scale) -> list[Ordering]:
    found = [
        Ordering(
            less="decoupled, storm",
            more="decoupled, calm",
            within=0.01,
            says="a storm costs decoupled learners at most 1 % of loss (the paper: nothing)",
        )
    ]
    for weather in ("storm", "storm × 8"):
        for less, more in (("decoupled", "elastic"), ("elastic", "data-parallel"), ("decoupled", "diloco")):
            found.append(
                Ordering(
                    less=f"{less}, {weather}",
                    more=f"{more}, {weather}",
                    value=figure("ended_s"),
                    says=f"{weather}: {less} is over sooner than {more} (the paper)",
                )
            )
    return found


FAULTS = Experiment(
    name="faults",
    question="What do kills cost decoupled learners, elastic and plain data parallel, and synchronous DiLoCo?",
    paper="decoupled goodput stays near one where data parallel's falls, at equal quality.",
    arms=_arms,
    columns=(
        Column(title="loss beside calm decoupled", value=beside("loss"), form="+.2%"),
        LOSS,
        Column(title="goodput", value=figure("goodput"), form=".1%"),
        Column(title="time, beside calm decoupled", value=_time, form=".3f"),
        Column(title="time to a loss 10 % above it", value=_to_loss, form=".3f"),
        Column(title="deaths", value=figure("deaths"), form=".1f"),
    ),
    orderings=_orderings,
    cost="about an hour on two cores",
)
