"""A plan as a RUN.toml, with the reason beside every line."""

from __future__ import annotations

import math

from gruppetto.sim.planner import Plan

__all__ = ["checkpoint_rounds", "reasons", "run_toml"]

STATE_BYTES = 16
"""Of a parameter in a learner's checkpoint: weights, base, and AdamW's two moments."""
HOST_CHIPS = 8
"""Chips behind one disk of a learner."""
LONGEST_S = 3600.0
SNAPSHOT_WINDOW = 2
CARRY_FROM = 0.1
"""Of the work, in flight when its fragment is overwritten."""


def run_toml(plan: Plan, *, rounds: int | None = None) -> str:
    """Settings that ``gruppetto train`` and ``gruppetto syncer`` take; all others stay at their defaults."""
    choice, why = plan.best.choice, reasons(plan)
    run: list[tuple[str, object]] = [
        ("num_learners", choice.learners),
        ("min_quorum", choice.min_quorum),
        ("sync_period", choice.sync_period),
        ("num_fragments", choice.num_fragments),
        ("overlap_steps", plan.overlap_steps),
        *([("rounds_in_flight", plan.rounds_in_flight)] if plan.rounds_in_flight > 1 else []),
        ("snapshot_window", SNAPSHOT_WINDOW),
        ("apply", plan_apply(plan)),
        ("durability", choice.durability),
    ]
    if choice.durability == "interval":
        run.append(("durability_rounds", choice.num_fragments))
    if rounds is not None:
        run.append(("rounds", rounds))
    tables: dict[str, list[tuple[str, object]]] = {
        "run": run,
        "codec": [("uplink", choice.uplink), ("downlink", choice.downlink)],
        "train": [("checkpoint_every_rounds", checkpoint_rounds(plan))],
    }
    lines = ["# Written by gruppetto plan. What is not here is at its default."]
    for table, settings in tables.items():
        lines += ["", f"[{table}]"]
        for key, value in settings:
            said = f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"'
            lines.append(f"{said}  # {why[key]}" if key in why else said)
    return "\n".join(lines) + "\n"


def plan_apply(plan: Plan) -> str:
    """``carry`` where too much would be dropped in flight."""
    return "carry" if dropped(plan) >= CARRY_FROM else "overwrite"


def dropped(plan: Plan) -> float:
    """The share of what is trained on that is in flight when its fragment is overwritten."""
    choice, needs = plan.best.choice, plan.best.needs
    return min(1.0, needs.flight_steps / (choice.sync_period * needs.slowdown))


def checkpoint_rounds(plan: Plan) -> int:
    """Young and Daly: √(2 · time to write · time between interruptions of one learner); not before every fragment is
    new, and at least once an hour."""
    cluster, choice = plan.cluster, plan.best.choice
    hosts = max(1.0, cluster.chips / choice.learners / HOST_CHIPS)
    write_s = STATE_BYTES * cluster.parameters / (cluster.machine.persist_bytes_per_s * hosts)
    between_s = cluster.mtbi_s * choice.learners / cluster.chips
    best_s = min(LONGEST_S, math.sqrt(2 * write_s * between_s))
    return max(choice.sync_period, round(best_s / plan.interval_s))


LATE = 1.05
"""Steps to a round, beyond which something does not keep up."""


def reasons(plan: Plan) -> dict[str, str]:
    """Why each setting is what it is, in one sentence."""
    cluster, choice, needs = plan.cluster, plan.best.choice, plan.best.needs
    if choice.sync_period == 24:
        period = "the paper's, and links and syncer keep up"
        if needs.slowdown > LATE:
            period = (
                f"the paper's; larger ones, with rounds sooner than every {needs.interval_s:.3g} s, gain too little"
            )
    else:
        period = f"fragments small enough for a round every {needs.interval_s:.3g} s"
    fragments = "one fragment a round, so that links carry the same all the time"
    if choice.num_fragments < choice.sync_period:
        fragments = f"one fragment every {choice.every:g} rounds; smaller ones would be single tensors"
    by_quorum = {quorum: outcome.participation or 0.0 for quorum, outcome in plan.seen}
    quorum = f"{by_quorum[choice.min_quorum]:.0%} of the learners take part in a simulated round"
    others = [f"{share:.0%} at K = {k}" for k, share in by_quorum.items() if k != choice.min_quorum]
    if others:
        quorum += f", {', '.join(others)}"
    return {
        "num_learners": _why_so_many(plan),
        "min_quorum": quorum + "; the grace window stays on",
        "sync_period": period,
        "num_fragments": fragments,
        "overlap_steps": f"a contribution is under way for about {needs.flight_steps:.1f} steps",
        "rounds_in_flight": f"an answer takes up to {plan.rounds_in_flight} steps to be asked for and to arrive",
        "snapshot_window": "the next round and the one after it",
        "apply": f"{dropped(plan):.1%} of the work is in flight when its fragment comes back",
        "durability": "no published round is ever lost"
        if choice.durability == "round"
        else f"a commit every round would cost {1e3 * cluster.machine.persist_s:.0f} ms besides its bytes",
        "uplink": "nearly free in loss" if choice.uplink != "fp32" else "the link has room for it",
        "downlink": "exact, and the link has room for it" if choice.downlink == "fp32" else "fp32 would be late",
        "checkpoint_every_rounds": "a learner's own state, for when no peer can give it (Young, Daly)",
    }


def _why_so_many(plan: Plan) -> str:
    m, needs, other = plan.best.choice.learners, plan.best.needs, plan.second
    if m == 1:
        return f"one elastic job keeps {needs.goodput:.1%} of the chips' time; more would gain less than they lose"
    if m == plan.cluster.sites:
        said = f"one at each site; goodput {needs.goodput:.1%}"
    else:
        said = f"goodput {needs.goodput:.1%}, where one elastic job has {plan.one_job:.1%}"
    if other is not None:
        said += (
            f"; M = {other.choice.learners} has {other.needs.goodput:.1%}, at a loss of about "
            f"{other.needs.loss:.2%} instead of {needs.loss:.2%}"
        )
    return said
