"""Unequal hardware: eight learners, four of them 18 % slower, all with 10 % jitter; who sets the pace, at what cost.

``K = 8`` waits for everybody, ``K = 1, no grace`` for nobody, and ``K = 1, grace`` for those who cost nothing. All runs
are as long in virtual seconds.
"""

from __future__ import annotations

from gruppetto.experiments.experiment import BESIDE, LOSS, Arm, Column, Experiment, Ordering, Scale, figure
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["HETEROGENEOUS"]

LEARNERS, GAP = 8, 0.18
MODES = {"K = 8": (8, True), "K = 1, no grace": (1, False), "K = 1, grace": (1, True)}
"""Quorum, and whether the grace window is on."""


def _arms(scale: Scale) -> list[Arm]:
    base = Ride(learners=LEARNERS, step_s=(1.0,) * (LEARNERS // 2) + (1.0 + GAP,), books=True)
    whole = scale.pick(160, 1000)
    arms = []
    for window in (2, 0):
        for mode, (quorum, grace) in MODES.items():
            # Whoever waits for the slower half makes fewer rounds in the same time.
            rounds = round(whole / (1.0 + GAP)) if quorum == LEARNERS else whole
            ride = base.but(rounds=rounds, quorum=quorum, grace=grace, snapshot_window=window)
            arms.append(Arm(name=f"{mode}, W = {window}", ride=ride, beside="K = 1, grace, W = 2"))
    return arms


def _pace(mine: Result, other: Result | None) -> float | None:
    """Of rounds, beside the fastest learner's steps."""
    return float(1.0 / mine["round_s"])


def _orderings(scale: Scale) -> list[Ordering]:
    grace, none, all_of_them = "K = 1, grace, W = 2", "K = 1, no grace, W = 2", "K = 8, W = 2"
    return [
        Ordering(less=grace, more=none, says="grace ends below no grace (the paper)"),
        Ordering(less=grace, more=all_of_them, says="grace ends below K = 8 (the paper)"),
        Ordering(
            less=grace,
            more=none,
            value=figure("round_s"),
            within=0.01,
            says="grace costs the pace of rounds at most 1 % (the paper)",
        ),
        Ordering(
            less=grace,
            more=all_of_them,
            value=figure("round_s"),
            within=-0.1,
            says="K = 8 makes rounds at least 10 % slower (the paper: goodput 84 %)",
        ),
        Ordering(
            less="K = 1, grace, W = 0",
            more=grace,
            value=figure("participation"),
            within=-0.01,
            says="snapshots (W = 2) bring more learners into a round than answers at the boundary (ours)",
        ),
        Ordering(less=grace, more="K = 1, grace, W = 0", says="and a lower loss (ours)"),
    ]


HETEROGENEOUS = Experiment(
    name="heterogeneous",
    question="Who sets the pace among unequal learners, and what does it cost in loss?",
    paper="K = 8: goodput 84 %; K = 1 without grace: 100 % but bad quality; with grace: 100 % and the best quality.",
    arms=_arms,
    columns=(
        BESIDE,
        LOSS,
        Column(title="pace of rounds", value=_pace, form=".1%"),
        Column(title="taking part", value=figure("participation"), form=".1%"),
        Column(title="tokens merged", value=figure("merged"), form=".1%"),
        Column(title="goodput", value=figure("goodput"), form=".1%"),
    ),
    orderings=_orderings,
    cost="about twenty minutes on two cores",
)
