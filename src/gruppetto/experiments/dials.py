"""One dial at a time: how the model is cut, H, P and τ, how values are applied, how contributions are weighed."""

from __future__ import annotations

from typing import Any

from gruppetto.experiments.experiment import BESIDE, LOSS, Arm, Column, Experiment, Ordering, Scale, figure
from gruppetto.experiments.ride import Ride

__all__ = ["APPLY", "FRAGMENTS", "SCHEDULE", "WEIGHTS"]


def _base(scale: Scale) -> Ride:
    return scale.pick(
        Ride(),
        Ride(model="tiny", batch=8, eval_windows=512, sync_period=24, fragments=24, rounds=1500),
    )


# ── fragments ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fragments_arms(scale: Scale) -> list[Arm]:
    base = _base(scale)
    ways = ("balanced", "tensor", "layer")
    return [Arm(name=way, ride=base.but(fragmenter=way), beside="balanced") for way in ways]


FRAGMENTS = Experiment(
    name="fragments",
    question="Does it matter for the loss how the model is cut into fragments?",
    paper="balanced ≈ tensor ≥ layer in quality, and balanced has the flattest bandwidth.",
    arms=_fragments_arms,
    orderings=lambda scale: [
        Ordering(less="balanced", more="tensor", within=0.005, says="balanced is within 0.5 % of tensor (the paper)"),
        Ordering(less="balanced", more="layer", within=0.005, says="balanced is within 0.5 % of layer (the paper)"),
    ],
    cost="about twenty minutes on two cores",
)


# ── schedule ─────────────────────────────────────────────────────────────────────────────────────────────────────

SHIPS = "H = 24, P = 24"
WAYS_S = (0.2, 0.4, 0.6)
"""One way, where a step takes a second: an answer that needs more than a step, there and back, is in no round."""
FLIGHTS = ((0.6, 2), (1.0, 3))
"""... unless so many rounds may be open at once."""


IN_VAIN = Column(title="trained in vain", value=figure("in vain"), form=".1%")
"""What was trained on a fragment while it was in flight, and is overwritten by what arrives."""


def _schedule_arms(scale: Scale) -> list[Arm]:
    base = _base(scale).but(rounds=scale.pick(480, 1500), sync_period=24, fragments=24)
    dials: dict[str, dict[str, Any]] = {
        "H = 8, P = 8": {"sync_period": 8, "fragments": 8},
        SHIPS: {},
        "H = 96, P = 24": {"sync_period": 96},
        "H = 24, P = 1": {"fragments": 1},
    }
    # τ says what may be in flight without costing anyone; how long a fragment is in flight is for the way it has.
    dials |= {f"{SHIPS}, {way_s} s away": {"latency_s": way_s, "overlap_steps": 5} for way_s in WAYS_S}
    dials |= {
        f"{SHIPS}, {way_s} s away, D = {in_flight}": {
            "latency_s": way_s,
            "overlap_steps": 5,
            "in_flight": in_flight,
        }
        for way_s, in_flight in FLIGHTS
    }
    return [Arm(name=name, ride=base.but(**dial), beside=SHIPS) for name, dial in dials.items()]


SCHEDULE = Experiment(
    name="schedule",
    question="What do a longer period H, fewer fragments P, a longer way, and more rounds in flight for it (D) cost?",
    paper="a longer period costs quality slowly; overlap is nearly free.",
    arms=_schedule_arms,
    columns=(
        BESIDE,
        LOSS,
        IN_VAIN,
        Column(title="taking part", value=figure("participation"), form=".1%"),
        Column(title="seconds a round", value=figure("round_s"), form=".2f"),
    ),
    orderings=lambda scale: [
        Ordering(less=SHIPS, more="H = 96, P = 24", says="H = 24 ends below H = 96 (Streaming DiLoCo)"),
        Ordering(
            less=f"{SHIPS}, 0.2 s away",
            more=SHIPS,
            within=0.005,
            says="0.2 s away costs at most 0.5 % (the paper: free)",
        ),
        Ordering(less=f"{SHIPS}, 0.4 s away", more=SHIPS, within=0.02, says="0.4 s away costs at most 2 % (our goal)"),
        Ordering(
            less=f"{SHIPS}, 0.6 s away, D = 2",
            more=f"{SHIPS}, 0.6 s away",
            says="at 0.6 s two rounds in flight end below one (ours)",
        ),
        Ordering(less=SHIPS, more="H = 24, P = 1", within=0.01, says="cutting costs at most 1 % (the paper)"),
    ],
    cost="about an hour on two cores",
)


# ── apply ────────────────────────────────────────────────────────────────────────────────────────────────────────

WAYS_APPLIED = ("overwrite", "blend", "carry")
AWAY = {"near": {}, "0.4 s away": {"latency_s": 0.4, "overlap_steps": 5}}


def _apply_arms(scale: Scale) -> list[Arm]:
    base = _base(scale).but(sync_period=24, fragments=24)
    return [
        Arm(name=f"{way}, {where}", ride=base.but(apply=way, **dials), beside=f"overwrite, {where}")
        for where, dials in AWAY.items()
        for way in WAYS_APPLIED
    ]


APPLY = Experiment(
    name="apply",
    question="When a fragment arrives: overwrite what was learnt meanwhile, blend the two, or carry it over?",
    paper="overwrites.",
    arms=_apply_arms,
    columns=(BESIDE, LOSS, IN_VAIN),
    orderings=lambda scale: [
        Ordering(
            less=f"overwrite, {where}",
            more=f"{way}, {where}",
            within=0.005,
            says=f"{where}: overwrite is within 0.5 % of {way} (the paper's choice)",
        )
        for where in AWAY
        for way in WAYS_APPLIED[1:]
    ],
    cost="about forty minutes on two cores",
)


# ── weights ──────────────────────────────────────────────────────────────────────────────────────────────────────

WEIGHINGS = {"tokens² / steps": "", "tokens": "tokens", "equal": "equal"}


def _weights_arms(scale: Scale) -> list[Arm]:
    base = _base(scale)
    worlds: dict[str, dict[str, Any]] = {
        "two slower": {"step_s": (1.0, 1.0, 2.0, 4.0)},
        "two small batches": {"batches": (base.batch, base.batch, max(1, base.batch // 2), max(1, base.batch // 4))},
        "both": {
            "step_s": (1.0, 1.0, 2.0, 4.0),
            "batches": (base.batch, base.batch, max(1, base.batch // 2), max(1, base.batch // 4)),
        },
    }
    return [
        Arm(
            name=f"{name}, {world}",
            ride=base.but(weighting=weighting, **dials),
            beside=f"tokens² / steps, {world}",
        )
        for world, dials in worlds.items()
        for name, weighting in WEIGHINGS.items()
    ]


WEIGHTS = Experiment(
    name="weights",
    question="How should contributions of unequal learners be weighed?",
    paper="tokens² / steps: quantity times quality.",
    arms=_weights_arms,
    orderings=lambda scale: [
        Ordering(
            less=f"tokens² / steps, {world}",
            more=f"{other}, {world}",
            says=f"{world}: tokens² / steps ends below {other} (the paper's choice)",
        )
        for world, other in (
            ("two slower", "equal"),
            ("two small batches", "tokens"),
            ("both", "tokens"),
            ("both", "equal"),
        )
    ],
    cost="about an hour on two cores",
)
