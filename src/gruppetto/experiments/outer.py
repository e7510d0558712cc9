"""The outer optimizer: learning rate η and momentum μ."""

from __future__ import annotations

from itertools import product

from gruppetto.experiments.experiment import Arm, Experiment, Ordering, Scale
from gruppetto.experiments.ride import Ride

__all__ = ["DEMO", "OUTER"]

RULES = {"RDA": "", "mean": "mean"}
LEARNERS = (1, 4, 8)
QUICK = ((0.4, 0.9), (0.7, 0.5), (0.7, 0.9), (1.0, 0.0))
FULL = tuple(product((0.4, 0.7, 1.0), (0.0, 0.5, 0.7, 0.9)))
SHIPS = (0.7, 0.5)
"""What ``auto`` takes for runs as short as these."""
PAPER_LONG = (0.4, 0.9)


def _name(rule: str, learners: int, outer: tuple[float, float]) -> str:
    return f"{rule}, M = {learners}, η = {outer[0]:g}, μ = {outer[1]:g}"


def _arms(scale: Scale) -> list[Arm]:
    base = scale.pick(
        Ride(sync_period=24, fragments=12),
        Ride(model="tiny", batch=8, eval_windows=512, sync_period=24, fragments=24, rounds=1500),
    )
    return [
        Arm(
            name=_name(rule, learners, outer),
            ride=base.but(learners=learners, merge=RULES[rule], outer=outer),
            beside=_name(rule, learners, SHIPS),
        )
        for rule, learners, outer in product(RULES, LEARNERS, scale.pick(QUICK, FULL))
    ]


def _orderings(scale: Scale) -> list[Ordering]:
    return [
        Ordering(
            less=_name("RDA", learners, SHIPS),
            more=_name("RDA", learners, outer),
            says=f"M = {learners}: η = 0.7, μ = 0.5 ends below η = {outer[0]:g}, μ = {outer[1]:g} (ours, short runs)",
        )
        for learners, outer in product(LEARNERS, scale.pick(QUICK, FULL))
        if outer != SHIPS
    ]


OUTER = Experiment(
    name="outer",
    question="Which η and μ suit a run of few outer steps at H = 24, and does it depend on the rule and on M?",
    paper="prints none of its own; DiLoCo has η = 0.7, μ = 0.9.",
    arms=_arms,
    orderings=_orderings,
    seeds=(2, 5),
    cost="about eight hours on two cores",
)


SWEEP = ((0.4, 0.9), (0.7, 0.7), (0.7, 0.5), (1.0, 0.5), (1.0, 0.0))


def _demo_arms(scale: Scale) -> list[Arm]:
    base = scale.pick(Ride(rounds=240), Ride(model="tiny", batch=8, rounds=700))
    unequal = base.but(step_s=(1.0, 1.0, 1.0, 2.0), fragments=24)
    rivals = [
        Arm(name="one learner alone", ride=base.but(system="lockstep", learners=1), beside="data parallel"),
        Arm(name="data parallel", ride=base.but(system="lockstep")),
    ]
    return rivals + [
        Arm(
            name=f"H = {period}, η = {lr:g}, μ = {momentum:g}, {apply}",
            ride=unequal.but(sync_period=period, outer=(lr, momentum), apply=apply),
            beside="data parallel",
        )
        for period, (lr, momentum), apply in product((8, 24), SWEEP, ("overwrite", "carry"))
    ]


DEMO = Experiment(
    name="demo",
    question="Which H, η, μ and way to apply suit the demo: four learners, one of them two times slower, 700 rounds?",
    paper="",
    arms=_demo_arms,
    seeds=(2, 1),
    cost="about ten minutes on two cores",
)
