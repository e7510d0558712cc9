"""Bytes of real runs against the formula (first weights, then N · b / 8 · M · T / H), and against data parallel's."""

from __future__ import annotations

from gruppetto.experiments.experiment import Arm, Column, Experiment, Ordering, Scale
from gruppetto.experiments.levers import FEW_BITS
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["BANDWIDTH"]

DIALS = ((24, "bf16"), (24, "int8"), (24, "int4"), (8, "bf16"))
CLOSEST = "H = 8, int4 both ways"
"""As in the preset ``closest``."""


def _name(period: int, uplink: str) -> str:
    return f"H = {period}, {uplink}"


def _arms(scale: Scale) -> list[Arm]:
    base = Ride(system="processes", model="tiny", learners=2, rounds=scale.pick(96, 480))
    arms = [
        Arm(name=_name(period, uplink), ride=base.but(sync_period=period, fragments=period, uplink=uplink))
        for period, uplink in DIALS
    ]
    return [*arms, Arm(name=CLOSEST, ride=base.but(**FEW_BITS))]


def _against_formula(mine: Result, other: Result | None) -> float:
    return float(mine["up_bytes"] / mine["up_by_formula_bytes"])


def _less(mine: Result, other: Result | None) -> float:
    return float(mine["gradients_bytes"] / mine["up_bytes"])


def _up(mine: Result, other: Result | None) -> float:
    return float(mine["up_bytes"] / 1e6)


def _down(mine: Result, other: Result | None) -> float:
    return float(mine["down_bytes"] / 1e6)


def _both_ways(mine: Result, other: Result | None) -> float:
    return _up(mine, other) + _down(mine, other)


BANDWIDTH = Experiment(
    name="bandwidth",
    question="How many bytes do real runs put on the links, beside the formula and beside data parallel?",
    paper="60 to 242 times less than data parallel, about a thousand times with int4.",
    arms=_arms,
    columns=(
        Column(title="times less than gradients in bf16, up", value=_less, form=".1f"),
        Column(title="MB up", value=_up),
        Column(title="beside the formula", value=_against_formula, form=".3f"),
        Column(title="MB down", value=_down),
    ),
    orderings=lambda scale: [
        Ordering(
            less=_name(24, "int4"),
            more=_name(24, "bf16"),
            value=_up,
            within=-0.6,
            says="int4 is at least 60 % less than bf16 (by the formula 74 %)",
        ),
        Ordering(
            less=_name(24, "bf16"),
            more=_name(8, "bf16"),
            value=_up,
            within=-0.6,
            says="H = 24 is at least 60 % less than H = 8 (by the formula 67 %)",
        ),
        Ordering(
            less=CLOSEST,
            more=_name(24, "bf16"),
            value=_both_ways,
            within=-0.3,
            says=f"{CLOSEST}, is at least 30 % less than what ships, up and down (by the formula 48 %)",
        ),
    ],
    how="measured",
    seeds=(2, 3),
    cost="about ten minutes on two cores",
)
