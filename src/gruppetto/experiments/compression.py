"""What coarse encodings cost: of contributions, with and without their rest said later, and of what is published.

Those of one and two bits are too coarse for a run: they are of this experiment alone.
"""

from __future__ import annotations

from gruppetto.experiments.coarse import COARSE
from gruppetto.experiments.experiment import BESIDE, LOSS, Arm, Column, Experiment, Ordering, Scale
from gruppetto.experiments.ride import Ride
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS

__all__ = ["COMPRESSION"]


def _arms(scale: Scale) -> list[Arm]:
    # In lock-step: who takes part in which round depends on no encoding.
    base = Ride(model="tiny", batch=8, quorum=4, jitter=0.0, rounds=scale.pick(96, 1500))
    arms = [
        Arm(name=f"{name} + rest" if codec.keeps_rest else name, ride=base.but(uplink=name), beside="fp32")
        for name, codec in CODECS.items()
    ]
    arms += [
        Arm(name=f"{name} alone", ride=base.but(uplink=name, feedback=False), beside="fp32")
        for name, codec in CODECS.items()
        if codec.keeps_rest
    ]
    arms += [
        Arm(name=f"{name} {with_rest}", ride=base.but(uplink=name, feedback=with_rest == "+ rest"), beside="fp32")
        for with_rest in ("+ rest", "alone")
        for name in COARSE
    ]
    return arms + [
        Arm(name=f"fp32, {name} down", ride=base.but(uplink="fp32", downlink=name), beside="fp32")
        for name in DOWNLINKS
        if name != "fp32"
    ]


def _orderings(scale: Scale) -> list[Ordering]:
    promised = [
        (name, "fp32", 0.005, "costs at most 0.5 % (the paper: int4 +0.09 %)") for name in ("bf16", "int8 + rest")
    ]
    promised += [("int4 + rest", "fp32", 0.005, "costs at most 0.5 % (the paper: +0.09 %)")]
    for coarse in COARSE:
        paper = "one bit +83 %" if coarse == "sign" else "two bits +32 %"
        promised += [
            (f"{coarse} + rest", f"{coarse} alone", 0.0, "ends below the same with its rest lost (ours)"),
            ("fp32", f"{coarse} alone", -0.005, f"ends at least 0.5 % below {coarse} alone (the paper: {paper})"),
        ]
    return [
        Ordering(less=less, more=more, within=within, says=f"{less} {says}") for less, more, within, says in promised
    ]


COMPRESSION = Experiment(
    name="compression",
    question="What do contributions of few bits cost, and what is saying the rest later worth?",
    paper="bf16 and int4 nearly free (+0.09 %), two bits +32 %, one bit +83 %.",
    arms=_arms,
    columns=(Column(title="beside fp32", value=BESIDE.value, form="+.3%"), LOSS),
    orderings=_orderings,
    cost="about an hour on two cores",
)
