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

SHIPS = "H = 24, P = 12, τ = 2"


def _schedule_arms(scale: Scale) -> list[Arm]:
    base = _base(scale).but(rounds=scale.pick(480, 1500))
    dials = [(1, 1, 0), (8, 12, 2), (24, 12, 2), (96, 12, 2)]
    dials += [(24, 1, 2), (24, 12, 0), (24, 12, 5), (24, 12, 11)]
    return [
        Arm(
            name=f"H = {period}, P = {fragments}, τ = {overlap}",
            ride=base.but(sync_period=period, fragments=fragments, overlap_steps=overlap),
            beside=SHIPS,
        )
        for period, fragments, overlap in dials
    ]


SCHEDULE = Experiment(
    name="schedule",
    question="What do a longer period H, fewer fragments P, and more overlap τ cost?",
    paper="a longer period costs quality slowly; overlap is nearly free.",
    arms=_schedule_arms,
    columns=(BESIDE, LOSS, Column(title="taking part", value=figure("participation"), form=".1%")),
    orderings=lambda scale: [
        Ordering(less=SHIPS, more="H = 96, P = 12, τ = 2", says="H = 24 ends below H = 96 (Streaming DiLoCo)"),
        Ordering(less="H = 24, P = 12, τ = 5", more=SHIPS, within=0.005, says="τ = 5 costs at most 0.5 % (the paper)"),
        Ordering(less=SHIPS, more="H = 24, P = 1, τ = 2", within=0.01, says="cutting costs at most 1 % (the paper)"),
    ],
    cost="about an hour on two cores",
)


# ── apply ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _apply_arms(scale: Scale) -> list[Arm]:
    arms = []
    for overlap in (2, 7):
        base = _base(scale).but(overlap_steps=overlap)
        arms += [
            Arm(name=f"{way}, τ = {overlap}", ride=base.but(apply=way), beside=f"overwrite, τ = {overlap}")
            for way in ("overwrite", "blend", "carry")
        ]
    return arms


APPLY = Experiment(
    name="apply",
    question="When a fragment arrives: overwrite what was learnt meanwhile, blend the two, or carry it over?",
    paper="overwrites.",
    arms=_apply_arms,
    orderings=lambda scale: [
        Ordering(less=f"overwrite, τ = {tau}", more=f"{way}, τ = {tau}", within=0.005, says=says)
        for tau, way in ((2, "carry"), (7, "carry"), (2, "blend"), (7, "blend"))
        for says in (f"τ = {tau}: overwrite is within 0.5 % of {way} (the paper's choice)",)
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
