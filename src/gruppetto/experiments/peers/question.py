"""Four workers with the same small model, data and number of steps, in every system; calm, and with each mishap."""

from __future__ import annotations

from gruppetto.experiments.experiment import LOSS, Arm, Column, Experiment, Ordering, Scale, Value, figure
from gruppetto.experiments.peers.crew import ALONE, OURS
from gruppetto.experiments.peers.mishaps import MISHAPS
from gruppetto.experiments.peers.race import PEERS, find_peers
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result

__all__ = ["RACES"]

WORDS = {
    "": "calm",
    "storm": "five times a worker is killed",
    "stopped": "one stands still for 5 s",
    "slow": "one four times slower",
    "spoilt": "one of NaN",
    "coordinator": "coordinator away for 5 s",
}
NOWHERE = ("hivemind", "coordinator")
"""It has none that could go away."""
OWN_STEPS = ("hivemind", "slow")
"""Its end is by the steps of the slow one, because we have said so: its time says nothing of it."""


def _name(peer: str, mishap: str) -> str:
    return f"{peer}, {WORDS[mishap]}"


def _systems(scale: Scale) -> tuple[str, ...]:
    return (OURS, *PEERS) if find_peers(scale.cache) is not None else (OURS,)


def _arms(scale: Scale) -> list[Arm]:
    base = Ride(system="race", rounds=scale.pick(168, 480))
    asked = [(peer, mishap) for mishap in MISHAPS for peer in _systems(scale) if (peer, mishap) != NOWHERE]
    return [Arm(name=_name(*each), ride=base.but(peer=each[0], mishap=each[1])) for each in [(ALONE, ""), *asked]]


def _thousands(key: str) -> Value:
    def value(mine: Result, other: Result | None) -> float | None:
        return None if mine.get(key) is None else float(mine[key] / 1e3)

    return value


WALL = figure("wall_s")
"""Seconds until the last worker has come in."""
LONGEST = figure("longest_s")


def _orderings(scale: Scale) -> list[Ordering]:
    found = [
        Ordering(
            less=_name(OURS, mishap),
            more=_name(OURS, ""),
            value=WALL,
            within=0.1,
            says=f"{OURS}, {WORDS[mishap]}: takes at most 10 % longer than calm (ours)",
        )
        for mishap in MISHAPS
        if mishap
    ]
    for peer in _systems(scale)[1:]:
        found += [
            Ordering(
                less=_name(OURS, mishap),
                more=_name(peer, mishap),
                within=0.02,
                says=f"{WORDS[mishap]}: within 2 % of {peer}'s loss, in as many steps (ours)",
            )
            for mishap in ("", "storm", "stopped", "slow")
        ]
        found += [
            Ordering(
                less=_name(OURS, mishap),
                more=_name(peer, mishap),
                value=value,
                says=f"{WORDS[mishap]}: {what} than with {peer} (ours)",
            )
            for mishap, what, value in (
                ("storm", "who lives on waits less at a time", LONGEST),
                ("stopped", "who lives on waits less at a time", LONGEST),
                ("slow", "takes less time", WALL),
                ("spoilt", "a better model comes out", LOSS.value),
            )
            if (peer, mishap) != OWN_STEPS
        ]
    return found


RACES = Experiment(
    name="peers",
    question="The same small training by other systems: how good, how fast, how many bytes, and what do mishaps cost?",
    paper="has no other systems; its data parallel and its DiLoCo wait for whoever is slow or gone.",
    arms=_arms,
    columns=(
        Column(title="seconds", value=WALL, form=".1f"),
        LOSS,
        Column(title="thousand tokens", value=_thousands("tokens"), form=".0f"),
        Column(title="came in", value=figure("came in"), form=".1f"),
        Column(title="step p50, ms", value=figure("step_p50_ms"), form=".0f"),
        Column(title="longest step, s", value=LONGEST, form=".2f"),
        Column(title="kB a step and worker", value=_thousands("bytes"), form=".1f"),
        Column(title="lines", value=figure("lines"), form=".0f"),
    ),
    orderings=_orderings,
    how="measured",
    alone=True,
    seeds=(2, 5),
    cost="one at a time, about an hour and a half where other systems are, half an hour with ours alone",
)
