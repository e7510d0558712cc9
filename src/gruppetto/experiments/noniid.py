"""Learners with different data: Python, C++, or documentation alone, against a share of everything each."""

from __future__ import annotations

from itertools import product

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, beside, figure
from gruppetto.experiments.material import DOMAINS
from gruppetto.experiments.ride import Ride

__all__ = ["NONIID"]

LEARNERS = (3, 6)
"""One or two for each domain."""
HOW = {"alike": "domains, alike", "apart": "domains, apart"}


def _arms(scale: Scale) -> list[Arm]:
    base = scale.pick(
        Ride(rounds=320, domains=True),
        Ride(model="tiny", batch=8, eval_windows=512, sync_period=24, fragments=24, rounds=1500, domains=True),
    )
    arms = []
    for m, (how, data) in product(LEARNERS, HOW.items()):
        ride = base.but(learners=m, data=data)
        lockstep = ride.but(system="lockstep", sync_period=8, fragments=8)
        arms += [
            Arm(name=f"data parallel, {how}, M = {m}", ride=lockstep, beside=f"data parallel, alike, M = {m}"),
            Arm(name=f"decoupled, {how}, M = {m}", ride=ride, beside=f"decoupled, alike, M = {m}"),
        ]
    alone = base.but(system="lockstep", learners=1, data=HOW["apart"], sync_period=8, fragments=8)
    return [*arms, Arm(name=f"one learner alone, {next(iter(DOMAINS))} only", ride=alone)]


def _orderings(scale: Scale) -> list[Ordering]:
    first = next(iter(DOMAINS))
    found = []
    for m in LEARNERS:
        found += [
            Ordering(
                less=f"decoupled, apart, M = {m}",
                more=f"decoupled, alike, M = {m}",
                within=0.02,
                says=f"M = {m}: a domain for each learner costs at most 2 % (ours)",
            ),
            Ordering(
                less=f"decoupled, apart, M = {m}",
                more=f"one learner alone, {first} only",
                value=figure(f"loss on {first}"),
                within=0.02,
                says=f"M = {m}: on its own domain it is within 2 % of a learner that has seen nothing else (ours)",
            ),
        ]
    return found


NONIID = Experiment(
    name="noniid",
    question="What if every learner has a domain of its own: Python, C++ headers, or Python's documentation?",
    paper="",
    arms=_arms,
    columns=(
        Column(title="beside alike", value=beside("loss"), form="+.2%"),
        LOSS,
        *(Column(title=f"on {name}", value=figure(f"loss on {name}")) for name in DOMAINS),
    ),
    orderings=_orderings,
    cost="about an hour on two cores",
)
