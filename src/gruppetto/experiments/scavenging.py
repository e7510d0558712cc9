"""What guests are worth: four learners, and for part of the run up to three times as many more.

Decoupled guests take a peer's state and leave on notice. ``elastic`` is data parallel, which pauses to take guests in
and to let them go. Every run is as many tokens long as the plain one of its system.
"""

from __future__ import annotations

from gruppetto.experiments.experiment import Arm, Column, Experiment, Ordering, Scale, beside
from gruppetto.experiments.guests import VISITS, time_to_loss, time_to_tokens
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["SCAVENGING"]

LEARNERS = 4
SHARES = {"plain": (0, 0.0), "+25 %": (1, 0.25), "+50 %": (2, 0.25), "+100 %": (4, 0.25), "+300 %": (12, 0.125)}
"""Guests at a time, and for which part of the plain run's time."""
SLOTS = LEARNERS + 3 * LEARNERS * VISITS
EVALUATIONS = 30
REACHED_BY_BOTH = 1.005


def _arms(scale: Scale) -> list[Arm]:
    whole = scale.pick(160, 1500)
    arms = []
    for system in ("decoupled", "elastic"):
        for name, (guests, share) in SHARES.items():
            ideal = round(whole * (1.0 - share * guests / LEARNERS))
            rounds = ideal if system == "decoupled" else whole
            ride = Ride(
                system=system,
                rounds=rounds,
                evaluations=rounds // max(1, ideal // EVALUATIONS),
                eval_windows=128,
                slots=SLOTS,
                guests=guests,
                guests_share=share,
                guests_of_rounds=whole if guests else 0,
            )
            arms.append(Arm(name=f"{system}, {name}", ride=ride, beside=f"{system}, plain"))
    return arms


def _to_tokens(mine: Result, plain: Result | None) -> float | None:
    if plain is None:
        return None
    ended_s, tokens, _ = plain["curve"][-1]
    return time_to_tokens(mine["curve"], tokens) / float(ended_s)


def _to_loss(mine: Result, plain: Result | None) -> float | None:
    if plain is None:
        return None
    goal = REACHED_BY_BOTH * max(mine["loss"], plain["loss"])
    return time_to_loss(mine["curve"], goal) / time_to_loss(plain["curve"], goal)


def _orderings(scale: Scale) -> list[Ordering]:
    found = [
        Ordering(
            less=f"decoupled, {guests}",
            more="decoupled, plain",
            value=_to_tokens,
            within=share - 1.0 + 0.03,
            says=f"{guests}: as many tokens in at most {share:g} + 0.03 of the time ({who})",
        )
        for guests, share, who in (("+100 %", 0.75, "the paper: 0.75"), ("+300 %", 0.625, "the paper: 0.62"))
    ]
    for guests in ("+100 %", "+300 %"):
        found += [
            Ordering(
                less=f"decoupled, {guests}",
                more=f"elastic, {guests}",
                value=_to_tokens,
                says=f"{guests}: guests save decoupled learners more time than data parallel (the paper)",
            ),
            Ordering(
                less=f"decoupled, {guests}",
                more="decoupled, plain",
                value=_to_loss,
                says=f"{guests}: a loss that both reach is reached sooner (the paper)",
            ),
        ]
    return found


SCAVENGING = Experiment(
    name="scavenging",
    question="How much time do machines save that are there for a part of the run only?",
    paper="wall-clock 0.75 with +100 % and 0.62 with +300 %; data parallel 1.02 and 0.80.",
    arms=_arms,
    columns=(
        Column(title="time to the tokens of the plain run", value=_to_tokens),
        Column(title="loss there, beside plain", value=beside("loss"), form="+.1%"),
        Column(title="time to a loss that both reach", value=_to_loss),
    ),
    orderings=_orderings,
    cost="about twenty minutes on two cores",
)
