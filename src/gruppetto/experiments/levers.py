"""What brings decoupled learners closer to data parallel: levers on the outer step, and the inner rate."""

from __future__ import annotations

from typing import Any

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, beside
from gruppetto.experiments.ride import Ride

__all__ = ["LEVERS"]

SHIPS = "as it ships"
RIVAL = "data parallel"
TWICE = ", inner rate twice"
RISING = (0.6, 1.4)
"""Shares of η in the first round and in the last."""
LEVERED: dict[str, dict[str, Any]] = {
    SHIPS: {},
    "H = 8, carry": {"sync_period": 8, "fragments": 8, "apply": "carry"},
    "η rises": {"outer_shares": RISING},
    "mean of the last tenth": {"outer_average": 0.1},
    "mean of the last fifth": {"outer_average": 0.2},
    "η rises, mean of the last fifth": {"outer_shares": RISING, "outer_average": 0.2},
}


def _arms(scale: Scale) -> list[Arm]:
    whole = Ride(model="tiny", batch=8, eval_windows=512, sync_period=24, fragments=24, rounds=1500)
    base = scale.pick(Ride(rounds=360, sync_period=24, fragments=24), whole)
    faster = base.but(inner_rate=2 * base.inner_rate)
    # As in ``quality``: what data parallel does not read is as it is left alone.
    rivals = {RIVAL: base, RIVAL + TWICE: faster}
    arms = [
        Arm(name=name, ride=ride.but(system="lockstep", sync_period=8, fragments=8)) for name, ride in rivals.items()
    ]
    arms += [Arm(name=name, ride=base.but(**lever), beside=RIVAL) for name, lever in LEVERED.items()]
    return [*arms, Arm(name=SHIPS + TWICE, ride=faster, beside=RIVAL + TWICE)]


LEVERS = Experiment(
    name="levers",
    question="What brings four decoupled learners closer to data parallel on as many tokens?",
    paper="does not say what its outer learning rate does over a run; tail averaging is 1803.05407.",
    arms=_arms,
    columns=(Column(title="beside data parallel", value=beside("loss"), form="+.2%"), LOSS),
    orderings=lambda scale: [
        Ordering(less=lever, more=SHIPS, says=f"{lever}: ends below what ships (ours)")
        for lever in (*LEVERED, SHIPS + TWICE)
        if lever != SHIPS
    ],
    cost="about three hours on two cores",
)
