"""Do decoupled learners train a model that is worse at something else than its loss?

The final model is exported, loaded as any user of transformers would, and asked multiple-choice questions about text
that it was never trained on: which of four lines comes next (:mod:`gruppetto.experiments.riddles`). Every model is
asked the same ones.
"""

from __future__ import annotations

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, Value
from gruppetto.experiments.quality import STORM_PER_HOUR
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["DOWNSTREAM"]

CALM, PARALLEL, SINGLE, UNTRAINED = "decoupled, M = 4", "data parallel, M = 4", "one learner alone", "not trained"


def _arms(scale: Scale) -> list[Arm]:
    base = scale.pick(
        Ride(rounds=240, questions=500), Ride(model="tiny", batch=8, eval_windows=512, rounds=1500, questions=2000)
    )
    lockstep = base.but(system="lockstep")
    decoupled = base.but(sync_period=scale.pick(8, 24), fragments=scale.pick(8, 24))
    arms = {
        PARALLEL: lockstep,
        CALM: decoupled,
        "decoupled in a storm, M = 4": decoupled.but(kills_per_hour=4 * STORM_PER_HOUR),
        SINGLE: lockstep.but(learners=1),
        UNTRAINED: lockstep.but(learners=1, rounds=1),
    }
    return [Arm(name=name, ride=ride, beside=PARALLEL) for name, ride in arms.items()]


HABITS = ("spelling", "order")
"""What models of this size can answer; the third kind is only looked at."""


def _right(kind: str, how: str) -> Value:
    return lambda mine, other: mine.get(f"{kind}, {how}")


def _wrong(mine: Result, other: Result | None) -> float:
    """The share of questions of habits that was answered wrongly."""
    return 1.0 - sum(float(mine[f"{kind}, plain"]) for kind in HABITS) / len(HABITS)


def _wrong_beside(mine: Result, other: Result | None) -> float | None:
    return None if other is None else _wrong(mine, None) - _wrong(other, None)


DOWNSTREAM = Experiment(
    name="downstream",
    question="Does what decoupled learners have trained answer as many questions as what data parallel has?",
    paper="text and vision benchmarks 70.1 / 58.7 under failures, data parallel 69.8 / 58.6 (5 B, 1 T tokens).",
    arms=_arms,
    columns=(
        Column(title="wrong answers beside, in points", value=_wrong_beside, form="+.2%"),
        # Choices of these two are as long as each other: by length, the same is answered.
        *(Column(title=f"right, {kind}", value=_right(kind, "plain"), form=".1%") for kind in HABITS),
        *(
            Column(title=f"right, elsewhere, {how}", value=_right("elsewhere", how), form=".1%")
            for how in ("plain", "by length")
        ),
        LOSS,
    ),
    orderings=lambda scale: [
        Ordering(
            less=CALM,
            more=PARALLEL,
            value=_wrong,
            within=0.05,
            says=f"{CALM}: wrong answers at most 5 % above those of data parallel (the paper: no clear difference)",
        ),
        Ordering(less=CALM, more=SINGLE, value=_wrong, says=f"{CALM} gives fewer wrong answers than {SINGLE}"),
        Ordering(less=SINGLE, more=UNTRAINED, value=_wrong, within=-0.1, says="questions tell training from none"),
    ],
    cost="about half an hour on two cores",
)
