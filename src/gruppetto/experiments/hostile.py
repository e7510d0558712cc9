"""What one learner that sends NaN and one that sends everything a thousand times too long do to six healthy ones."""

from __future__ import annotations

from gruppetto.experiments.experiment import BESIDE, LOSS, Arm, Column, Experiment, Ordering
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["HOSTILE", "hostile_arms"]

HEALTHY = 6
BAD = ((6, "nan"), (7, "1000"))
GATES = {"with them, gate clips": "clip", "gate refuses": "reject", "gate off": "off"}
RULES = ("trimmed", "median", "clipped-rda")
ALONE = "six alone"


def hostile_arms(base: Ride) -> list[Arm]:
    """The six alone, and with the two bad ones behind each gate and each robust rule. What is not finite is refused by
    all."""
    among = base.but(learners=HEALTHY + len(BAD), bad=BAD)
    return [
        Arm(name=ALONE, ride=base.but(learners=HEALTHY)),
        *(Arm(name=name, ride=among.but(gate=gate), beside=ALONE) for name, gate in GATES.items()),
        *(Arm(name=f"gate off, {rule}", ride=among.but(gate="off", merge=rule), beside=ALONE) for rule in RULES),
    ]


def _count(of: str) -> Column:
    def value(mine: Result, other: Result | None) -> float | None:
        return float(sum(mine[of].values())) if of in mine else None

    return Column(title=of, value=value, form=".0f")


HOSTILE = Experiment(
    name="hostile",
    question="What do a learner of NaN and one a thousand times too long do to six healthy ones?",
    paper="",
    arms=lambda scale: hostile_arms(Ride(model="tiny", batch=8, rounds=scale.pick(96, 1000))),
    columns=(BESIDE, LOSS, _count("rejected"), _count("clipped")),
    orderings=lambda scale: (
        [
            Ordering(less=name, more=ALONE, within=0.01, says=f"{name}: at most 1 % above the six alone (ours)")
            for name in ("with them, gate clips", "gate refuses")
        ]
        + [
            Ordering(less=ALONE, more="gate off", within=-0.5, says="without gate the run is ruined (ours)"),
        ]
    ),
    cost="about an hour on two cores",
)
