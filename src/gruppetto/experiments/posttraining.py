"""Is a model that decoupled learners have trained as good to fine-tune as one of data parallel?

Pre-trained on Python, then tuned by one learner with one recipe on Python's documentation, and judged there. And where
a model that others have pre-trained is there (:mod:`gruppetto.experiments.pretrained`): is it tuned as well by
decoupled learners as by data parallel, all of it or its adapters, on as many tokens?
"""

from __future__ import annotations

from gruppetto.experiments.experiment import Arm, Column, Experiment, Ordering, Scale, beside, figure
from gruppetto.experiments.pretrained import PRETRAINED, find_pretrained
from gruppetto.experiments.quality import STORM_PER_HOUR
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["POSTTRAINING"]

TUNED: dict[str, dict[str, object]] = {"whole": {"inner_rate": 2e-4}, "by LoRA": {"inner_rate": 2e-3, "lora": 8}}


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
    found = [Arm(name=name, ride=ride, beside="data parallel, M = 4") for name, ride in arms.items()]
    return found + _tuning(scale)


def _tuning(scale: Scale) -> list[Arm]:
    """Two learners tune what others have pre-trained; nothing where it is not there."""
    if find_pretrained(scale.cache) is None:
        return []
    base = Ride(model=PRETRAINED, data="documentation", batch=2, learners=2, rounds=scale.pick(16, 240))
    base = base.but(eval_windows=scale.pick(16, 256), sync_period=scale.pick(4, 24), fragments=4, overlap_steps=1)
    arms = []
    for what, change in TUNED.items():
        parallel, decoupled = (f"SmolLM2 {what}, {how}, M = 2" for how in ("data parallel", "decoupled"))
        rival = base.but(**change, system="lockstep", sync_period=8, fragments=8, overlap_steps=2)
        arms.append(Arm(name=parallel, ride=rival, beside=parallel))
        arms.append(Arm(name=decoupled, ride=base.but(**change), beside=parallel))
    return arms


def _orderings(scale: Scale) -> list[Ordering]:
    after = figure("after tuning")
    return (
        [
            Ordering(
                less=name,
                more="data parallel, M = 4",
                value=after,
                within=0.02,
                says=f"{name}: tuned, within 2 % of data parallel's (the paper: not hurt)",
            )
            for name in ("decoupled, M = 4", "decoupled in a storm, M = 4")
        ]
        + [
            Ordering(
                less="decoupled, M = 4",
                more=name,
                value=after,
                says=f"decoupled pre-training, tuned, ends below {name}, tuned",
            )
            for name in ("one learner alone", "no pre-training")
        ]
        + _tuning_orderings(scale)
    )


def _tuning_orderings(scale: Scale) -> list[Ordering]:
    if find_pretrained(scale.cache) is None:
        return []
    return [
        Ordering(
            less=f"SmolLM2 {what}, decoupled, M = 2",
            more=f"SmolLM2 {what}, data parallel, M = 2",
            value=figure("after tuning"),
            within=0.02,
            says=f"SmolLM2, {what}: tuned decoupled, within 2 % of tuned by data parallel (ours)",
        )
        for what in TUNED
    ]


def _pretraining_loss(mine: Result, other: Result | None) -> float | None:
    """Of what was pre-trained by the ride."""
    return None if mine["loss"] == mine.get("after tuning") else mine["loss"]


POSTTRAINING = Experiment(
    name="posttraining",
    question="Is what decoupled learners have trained as good to fine-tune as what data parallel has?",
    paper="post-training on top is not hurt.",
    arms=_arms,
    columns=(
        Column(title="beside, after tuning", value=beside("after tuning"), form="+.2%"),
        Column(title="after tuning", value=figure("after tuning")),
        Column(title="before tuning", value=figure("before tuning")),
        Column(title="pre-training loss", value=_pretraining_loss),
    ),
    orderings=_orderings,
    cost="about half an hour on two cores",
)
