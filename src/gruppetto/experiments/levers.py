"""What brings decoupled learners closer to data parallel: levers on the outer step, and the inner rate."""

from __future__ import annotations

from typing import Any

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, beside
from gruppetto.experiments.ride import Ride

__all__ = ["CLOSEST", "FEW_BITS", "LEVERS"]

SHIPS = "as it ships"
RIVAL = "data parallel"
TWICE = ", inner rate twice"
OFTEN: dict[str, Any] = {"sync_period": 8, "fragments": 8, "apply": "carry"}
RISING: dict[str, Any] = {"outer_shares": (0.6, 1.4)}
MEAN: dict[str, Any] = {"outer_average": 0.1}
FEW_BITS: dict[str, Any] = {"uplink": "int4", "downlink": "delta-int4"}
"""A quarter of bf16 up and an eighth of float32 down: with H = 8 half the bytes of what ships."""
CLOSEST = OFTEN | RISING | MEAN | FEW_BITS
"""As rides say it: the preset ``closest`` of a run."""
ALL = "all three"
"""The outer optimizer ``rising``."""
CHEAP = "all three, int4 both ways"
LEVERED: dict[str, dict[str, Any]] = {
    SHIPS: {},
    "H = 8, carry": OFTEN,
    "η rises": RISING,
    "mean of the last tenth": MEAN,
    "H = 8, carry, η rises": OFTEN | RISING,
    "H = 8, carry, mean of the last tenth": OFTEN | MEAN,
    ALL: OFTEN | RISING | MEAN,
    CHEAP: CLOSEST,
}
FEWER = (ALL, CHEAP, SHIPS)
"""Of which is asked whether they bring as much to two learners."""


def _arms(scale: Scale) -> list[Arm]:
    whole = Ride(model="tiny", batch=8, eval_windows=512, sync_period=24, fragments=24, rounds=1500)
    base = scale.pick(Ride(rounds=360, sync_period=24, fragments=24), whole)
    bases = {"": base, ", M = 2": base.but(learners=2), TWICE: base.but(inner_rate=2 * base.inner_rate)}
    arms = []
    for what, ride in bases.items():
        # As in ``quality``: what data parallel does not read is as it is left alone.
        arms.append(Arm(name=RIVAL + what, ride=ride.but(system="lockstep", sync_period=8, fragments=8)))
        levers = LEVERED if not what else FEWER
        arms += [Arm(name=lever + what, ride=ride.but(**LEVERED[lever]), beside=RIVAL + what) for lever in levers]
    return arms


def _orderings(scale: Scale) -> list[Ordering]:
    found = [
        Ordering(less=lever, more=SHIPS, says=f"{lever}: ends below what ships (ours)")
        for lever in LEVERED
        if lever != SHIPS
    ]
    return [
        *found,
        Ordering(less=ALL, more=RIVAL, within=0.02, says="all three: within 2 % of data parallel, M = 4 (our goal)"),
        Ordering(
            less=f"{ALL}, M = 2",
            more=f"{RIVAL}, M = 2",
            within=0.01,
            says="all three: within 1 % of data parallel, M = 2 (our goal)",
        ),
    ]


LEVERS = Experiment(
    name="levers",
    question="What brings four decoupled learners closer to data parallel on as many tokens?",
    paper="does not say what its outer learning rate does over a run; tail averaging is 1803.05407.",
    arms=_arms,
    columns=(Column(title="beside data parallel", value=beside("loss"), form="+.2%"), LOSS),
    orderings=_orderings,
    cost="about five hours on two cores",
)
