"""Rules of merging, and how the contributions lie that are merged."""

from __future__ import annotations

from gruppetto.experiments.experiment import BESIDE, LOSS, Arm, Column, Experiment, Ordering, Scale, figure
from gruppetto.experiments.ride import Ride

__all__ = ["MERGE"]

RULES = {
    "RDA, embeddings averaged": "",
    "RDA for everything": "rda",
    "mean": "mean",
    "trimmed": "trimmed",
    "median": "median",
    "clipped RDA": "clipped-rda",
}
SHIPS = "RDA, embeddings averaged"


def _many(scale: Scale) -> tuple[int, ...]:
    return scale.pick((8,), (8, 16))


def _arms(scale: Scale) -> list[Arm]:
    base = scale.pick(
        Ride(rounds=160, directions=True),
        Ride(model="tiny", batch=8, eval_windows=512, sync_period=24, fragments=24, rounds=1500, directions=True),
    )
    # Few learners only to see how the length of a mean falls with their number.
    few = [Arm(name=f"{SHIPS}, M = {m}", ride=base.but(learners=m)) for m in (2, 4)]
    many = [
        Arm(name=f"{name}, M = {m}", ride=base.but(learners=m, merge=rule), beside=f"{SHIPS}, M = {m}")
        for m in _many(scale)
        for name, rule in RULES.items()
    ]
    return few + many


def _orderings(scale: Scale) -> list[Ordering]:
    found = []
    for m in _many(scale):
        rivals = {"mean": "the paper", "RDA for everything": "the paper", "median": "ours", "trimmed": "ours"}
        found += [
            Ordering(
                less=f"{SHIPS}, M = {m}",
                more=f"{rule}, M = {m}",
                says=f"M = {m}: RDA with averaged embeddings ends below {rule} ({who})",
            )
            for rule, who in rivals.items()
        ]
    lengths = [
        Ordering(
            less=f"{SHIPS}, M = {more}",
            more=f"{SHIPS}, M = {less}",
            value=figure("mean_norm"),
            says=f"the mean is shorter with {more} learners than with {less} (the paper: 1/√M)",
        )
        for less, more in ((2, 4), (4, 8), (8, 16))
        if more in (4, *_many(scale))
    ]
    return found + lengths


MERGE = Experiment(
    name="merge",
    question="Which merge rule is best, are contributions nearly orthogonal, and is their mean 1/√M as long as one?",
    paper="RDA with averaged embeddings is best; outer gradients are nearly orthogonal, and a mean shrinks as 1/√M.",
    arms=_arms,
    columns=(
        BESIDE,
        LOSS,
        Column(title="cosine of two, all rounds", value=figure("cosine_of_all"), form=".2f"),
        Column(title="last quarter", value=figure("cosine"), form=".2f"),
        Column(title="length of the mean there", value=figure("mean_norm")),
        Column(title="if orthogonal", value=figure("mean_norm_if_orthogonal")),
    ),
    orderings=_orderings,
    cost="about four hours on two cores",
)
