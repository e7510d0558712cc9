"""What ``gruppetto plan`` says, for people and for scripts."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from gruppetto.cli.plan_file import checkpoint_rounds, plan_apply, reasons
from gruppetto.cli.plan_notes import gbit, notes, verdict
from gruppetto.cli.quantities import counted, timed
from gruppetto.sim.choice import Choice
from gruppetto.sim.planner import Change, Plan

__all__ = ["as_json", "start_with", "text_of"]

FIELDS = {"gbit_s": "links", "mtbi_s": "MTBI of a chip", "step_s": "steps"}
ONE_JOB = ("num_learners", "checkpoint_every_rounds")
"""What means something where there is one learner: it waits for nobody, and there is no syncer."""


def text_of(plan: Plan, *, rounds: int | None = None) -> str:
    """The recommendation, what it needs, the runner-up, and what would change it."""
    lines = [_asked(plan), "", *(_of_one_job(plan) if plan.best.choice.learners == 1 else _of_learners(plan))]
    lines += ["", "what would change this:"]
    lines += [f"  {_said(change, plan)}" for change in plan.changes] or [
        "  nothing within 256 times as much, or as little"
    ]
    lines += ["", *(f"note: {note}" for note in notes(plan, rounds=rounds))]
    return "\n".join(lines)


def _of_one_job(plan: Plan) -> list[str]:
    why, chosen = reasons(plan), _settings(plan)
    lines = [f"  {name:<24} {chosen[name]!s:<10} {why[name]}" for name in ONE_JOB]
    return [
        *lines,
        "",
        f"expect   goodput {plan.best.needs.goodput:.1%}; no syncer, no rounds, no links to provide for",
    ]


def _of_learners(plan: Plan) -> list[str]:
    why, needs, chosen = reasons(plan), plan.best.needs, _settings(plan)
    lines = [f"  {name:<24} {value!s:<10} {why[name]}" for name, value in chosen.items()]
    taking_part = plan.seen[0][1].participation
    link = "a site's link" if plan.cluster.sites is not None else "a learner's link"
    enough = f"{gbit(needs.gbit_s)} would give a round for every step"
    if math.isinf(needs.gbit_s):
        enough = "no link gives a round for every step: the syncer's disk and processor take longer than that"
    lines += [
        "",
        f"expect   goodput {needs.goodput:.1%}; a round every {timed(plan.interval_s)} (simulated, priced "
        f"{timed(needs.interval_s)}); {taking_part or 0:.0%} of the learners in it; about {needs.loss:.2%} more loss",
        f"needs    {link} carries {gbit(needs.mean_gbit_s)} in the mean; {enough}",
        f"syncer   {_gib(needs.syncer_gib)} of memory, {needs.syncer_cores} cores, {_gib(needs.disk_gib)} of disk, "
        f"{gbit(needs.syncer_gbit_s)} each way in the mean",
    ]
    if plan.second is not None:
        second = plan.second
        lines += [
            f"next     {_short(second.choice)}: goodput {second.needs.goodput:.1%}, about {second.needs.loss:.2%} more "
            f"loss; worth {second.needs.value:.3f}, where the first is worth {needs.value:.3f}",
        ]
    return lines


def start_with(plan: Plan, *, file: str) -> list[str]:
    """The commands that start a run as planned: a syncer, and each of the learners. None for one job."""
    learners = plan.best.choice.learners
    if learners == 1:
        return []
    names = " ".join(f"--learner learner-{n}" for n in range(min(learners, 2))) + (" …" if learners > 2 else "")
    return [
        f"gruppetto certs make --host SYNCER {names}",
        f"gruppetto syncer {file} --listen 0.0.0.0:7171 --state DIR --certs certs",
        f"gruppetto learner {file} --syncer https://SYNCER:7171 --name learner-0 --certs certs",
    ]


def as_json(plan: Plan, *, rounds: int | None = None) -> dict[str, Any]:
    """The same as one object; shares in 0…1, seconds, Gbit/s, GiB. What is infinite is null, and so is what one job
    needs of links and a syncer that it does not have."""
    alone = plan.best.choice.learners == 1
    return {
        "settings": _settings(plan),
        "reasons": reasons(plan),
        "expected": {
            "goodput": plan.best.needs.goodput,
            "one_elastic_job": plan.one_job,
            "loss": plan.best.needs.loss,
            "interval_s": _finite(plan.interval_s),
            "participation": plan.seen[0][1].participation,
        },
        "plain_data_parallel": {"better": plan.plain_is_better, "value": plan.one_job_value, "why": verdict(plan)},
        "needs": None
        if alone
        else {name: _finite(value) for name, value in asdict(plan.best.needs).items() if name != "problems"},
        "runner_up": None
        if plan.second is None
        else {
            **asdict(plan.second.choice),
            "goodput": plan.second.needs.goodput,
            "loss": plan.second.needs.loss,
            "value": plan.second.needs.value,
        },
        "value": plan.best.needs.value,
        "changes": [{"field": c.field, "has": c.has, "at": c.at, "to": asdict(c.to)} for c in plan.changes],
        "notes": notes(plan, rounds=rounds),
    }


def _asked(plan: Plan) -> str:
    cluster = plan.cluster
    sites = f", {cluster.sites} sites" if cluster.sites is not None else ""
    whose = "a site" if cluster.sites is not None else "a learner"
    return (
        f"{counted(cluster.chips)} chips{sites}, MTBI {timed(cluster.mtbi_s)}, steps of {timed(cluster.step_s)}, "
        f"{counted(cluster.parameters)} parameters, {gbit(cluster.gbit_s)} {whose}"
    )


def _settings(plan: Plan) -> dict[str, Any]:
    choice = plan.best.choice
    return {
        "num_learners": choice.learners,
        "min_quorum": choice.min_quorum,
        "sync_period": choice.sync_period,
        "num_fragments": choice.num_fragments,
        "overlap_steps": plan.overlap_steps,
        **({"rounds_in_flight": plan.rounds_in_flight} if plan.rounds_in_flight > 1 else {}),
        "apply": plan_apply(plan),
        "uplink": choice.uplink,
        "downlink": choice.downlink,
        "durability": choice.durability,
        "checkpoint_every_rounds": checkpoint_rounds(plan),
    }


def _short(choice: Choice) -> str:
    return f"M = {choice.learners}, H = {choice.sync_period}, {choice.uplink} up, {choice.downlink} down"


def _said(change: Change, plan: Plan) -> str:
    shown = gbit(change.at) if change.field == "gbit_s" else timed(change.at)
    direction = "from" if change.at > change.has else "down to"
    now, then = asdict(plan.best.choice), asdict(change.to)
    names = {"learners": "M", "sync_period": "H", "num_fragments": "P"}
    turned = [f"{names.get(key, key)} = {then[key]}" for key in then if key != "min_quorum" and then[key] != now[key]]
    return f"{FIELDS[change.field]} {direction} {shown}: {', '.join(turned)}"


def _gib(value: float) -> str:
    return f"{value:,.0f} GiB" if value >= 10 else f"{1024 * value:,.0f} MiB"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
