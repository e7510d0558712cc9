"""Decoupled learners against data parallel on as many tokens, by number of learners and length of the run."""

from __future__ import annotations

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, beside
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["QUALITY"]

LEARNERS = (1, 2, 4, 8)
GOALS = {2: 0.01, 4: 0.02, 8: 0.04}
"""How far above data parallel the longest run may end, by M."""
STORM_PER_HOUR = 250.0
SYNC_PERIOD, FRAGMENTS = 24, 24


def _base(scale: Scale) -> Ride:
    return scale.pick(Ride(), Ride(model="tiny", batch=8, eval_windows=512))


def _lengths(scale: Scale) -> tuple[int, ...]:
    return scale.pick((240, 960), (500, 1500, 4000, 10_000))


def _decoupled(scale: Scale, learners: int, rounds: int) -> Ride:
    period = scale.pick(8, SYNC_PERIOD)
    return _base(scale).but(learners=learners, rounds=rounds, sync_period=period, fragments=scale.pick(8, FRAGMENTS))


def _arms(scale: Scale) -> list[Arm]:
    arms = []
    for rounds in _lengths(scale):
        for learners in LEARNERS:
            rival = f"data parallel, M = {learners}, T = {rounds}"
            lockstep = _base(scale).but(system="lockstep", learners=learners, rounds=rounds)
            arms += [
                Arm(name=rival, ride=lockstep, beside=f"data parallel, M = 1, T = {rounds}"),
                Arm(
                    name=f"decoupled, M = {learners}, T = {rounds}",
                    ride=_decoupled(scale, learners, rounds),
                    beside=rival,
                    line=f"M = {learners}",
                    x=rounds,
                ),
            ]
        storm = _decoupled(scale, 8, rounds).but(kills_per_hour=STORM_PER_HOUR)
        rival = f"data parallel, M = 8, T = {rounds}"
        arms.append(
            Arm(
                name=f"decoupled in a storm, M = 8, T = {rounds}",
                ride=storm,
                beside=rival,
                line="M = 8, storm",
                x=rounds,
            )
        )
    return arms


def _orderings(scale: Scale) -> list[Ordering]:
    longest = _lengths(scale)[-1]
    goals = [
        Ordering(
            less=f"decoupled, M = {learners}, T = {longest}",
            more=f"data parallel, M = {learners}, T = {longest}",
            within=within,
            says=f"M = {learners}: within {within:.0%} of data parallel at T = {longest} (our goal)",
        )
        for learners, within in GOALS.items()
    ]
    single = [
        Ordering(
            less=f"decoupled, M = {learners}, T = {longest}",
            more=f"data parallel, M = 1, T = {longest}",
            says=f"M = {learners} ends below one learner alone",
        )
        for learners in GOALS
    ]
    storm = Ordering(
        less=f"decoupled in a storm, M = 8, T = {longest}",
        more=f"decoupled, M = 8, T = {longest}",
        within=0.01,
        says=f"{STORM_PER_HOUR:g} kills an hour cost M = 8 at most 1 % more (our goal)",
    )
    return [*single, *goals, storm]


def _tokens(mine: Result, other: Result | None) -> float | None:
    return mine["tokens"] / 1e6 if "tokens" in mine else None


QUALITY = Experiment(
    name="quality",
    question="How far above data parallel do M decoupled learners end on as many tokens, by length of the run?",
    paper="equal on dense models (5B parameters, 1T tokens, under failures: 70.1 and 58.7 against 69.8 and 58.6); at "
    "35M parameters M = 8 costs 3.9 % of loss with plain averaging.",
    arms=_arms,
    columns=(
        Column(title="beside data parallel", value=beside("loss"), form="+.2%"),
        LOSS,
        Column(title="million tokens", value=_tokens, form=".2f"),
    ),
    orderings=_orderings,
    x_label="rounds",
    log_x=True,
    cost="about twelve hours on two cores",
)
