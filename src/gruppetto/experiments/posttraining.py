"""Is a model that decoupled learners have trained as good to fine-tune as one of data parallel?

Pre-trained on Python, then tuned by one learner with one recipe on Python's documentation, and judged there.
"""

from __future__ import annotations

from gruppetto.experiments.experiment import Arm, Column, Experiment, Ordering, Scale, beside, figure
from gruppetto.experiments.quality import STORM_PER_HOUR
from gruppetto.experiments.ride import Ride

__all__ = ["POSTTRAINING"]


def _arms(scale: Scale) -> list[Arm]:
    base = scale.pick(
        Ride(rounds=480, tuned_steps=120),
        Ride(model="tiny", batch=8, eval_windows=512, rounds=1500, tuned_steps=300),
    ).but(tuned_on="documentation")
    lockstep = base.but(system="lockstep")
    decoupled = base.but(sync_period=scale.pick(8, 24), fragments=scale.pick(8, 24))
    arms = {
        "data parallel, M = 4": lockstep,
        "decoupled, M = 4": decoupled,
        "decoupled in a storm, M = 4": decoupled.but(kills_per_hour=4 * STORM_PER_HOUR),
        "one learner alone": lockstep.but(learners=1),
        "no pre-training": lockstep.but(learners=1, rounds=1),
    }
    return [Arm(name=name, ride=ride, beside="data parallel, M = 4") for name, ride in arms.items()]


def _orderings(scale: Scale) -> list[Ordering]:
    after = figure("after tuning")
    return [
        Ordering(
            less=name,
            more="data parallel, M = 4",
            value=after,
            within=0.02,
            says=f"{name}: tuned, within 2 % of data parallel's (the paper: not hurt)",
        )
        for name in ("decoupled, M = 4", "decoupled in a storm, M = 4")
    ] + [
        Ordering(
            less="decoupled, M = 4",
            more=name,
            value=after,
            says=f"decoupled pre-training, tuned, ends below {name}, tuned",
        )
        for name in ("one learner alone", "no pre-training")
    ]


POSTTRAINING = Experiment(
    name="posttraining",
    question="Is what decoupled learners have trained as good to fine-tune as what data parallel has?",
    paper="post-training on top is not hurt.",
    arms=_arms,
    columns=(
        Column(title="beside, after tuning", value=beside("after tuning"), form="+.2%"),
        Column(title="after tuning", value=figure("after tuning")),
        Column(title="before tuning", value=figure("before tuning")),
        Column(title="pre-training loss", value=figure("loss")),
    ),
    orderings=_orderings,
    cost="about half an hour on two cores",
)
