"""What ``gruppetto plan`` says besides its choice: whether plain data parallel would be better, and what to keep in
mind."""

from __future__ import annotations

from gruppetto.cli.quantities import counted
from gruppetto.sim.bandwidth import Traffic, needed_gbit_s
from gruppetto.sim.machine import LOADED
from gruppetto.sim.planner import Plan, Priced

__all__ = ["gbit", "notes", "verdict"]

SMALL_MODEL = 2_400_000_000
"""Parameters of the largest model whose loss with eight learners is known from a scaling study."""
UTILISATION = 0.9
LOOPBACK_S = 2e-5
"""One way: below, it is a machine that talks to itself."""


def verdict(plan: Plan) -> str:
    """Decoupled learners or one job with elastic data parallelism: which of them is better, and why."""
    keeps = f"one elastic job keeps {plan.one_job:.1%} of the chips' time"
    if plan.one_job_value < plan.one_job:
        keeps += f" ({plan.one_job_value:.1%} where it waits for the links between sites)"
    keeps += " at no more loss"
    if not plan.plain_is_better:
        return f"decoupled learners are better than plain data parallel: {_shown(plan.best)}; {keeps}"
    others = plan.second if plan.best.choice.learners == 1 else plan.best
    return f"plain data parallel is better: {keeps}" + (f"; {_shown(others)}" if others is not None else "")


def notes(plan: Plan, *, rounds: int | None = None) -> list[str]:
    """What to keep in mind. ``rounds``: the last one of the run, if it is known."""
    cluster, choice = plan.cluster, plan.best.choice
    said = [verdict(plan)]
    if choice.learners > 1:
        said += _of_learners(plan)
        if rounds is not None and rounds < choice.sync_period:
            said.append(
                f"the run ends with round {rounds}, before every fragment has been synchronised once: "
                f"sync_period is {choice.sync_period}; give it several times as many rounds"
            )
        if cluster.machine.is_assumed:
            said.append(
                f"the rates of the syncer's host are assumed ({counted(int(cluster.machine.fold_elements_per_s))} "
                f"elements folded and {counted(int(cluster.machine.persist_bytes_per_s))} bytes written a second); "
                "gruppetto doctor --measure --out machine.json measures them, for --machine"
            )
        if cluster.machine.latency_s < LOOPBACK_S:
            said.append(
                f"the latency is taken to be {1e6 * cluster.machine.latency_s:.3g} µs, as of a machine that talks to "
                "itself; if learners are farther away, say --latency, or measure with gruppetto doctor --syncer URL"
            )
    if cluster.machine.was_loaded:
        said.append(
            f"the machine was measured while {cluster.machine.load_per_core:.2g} processes wanted each of its cores "
            f"(more than {LOADED:g} is a loaded one): its rates are what they left; measure again when it is idle"
        )
    said.append("losses are estimates from published figures, goodput is simulated; docs/simulator.md says how well")
    return said


def _of_learners(plan: Plan) -> list[str]:
    cluster, needs = plan.cluster, plan.best.needs
    said = []
    if cluster.parameters < SMALL_MODEL:
        said.append(
            f"at {counted(cluster.parameters)} parameters several learners visibly cost loss "
            f"(about {needs.loss:.1%} here); the cost shrinks as the model grows"
        )
    if cluster.sites is not None and cluster.sites > 1:
        traffic = Traffic(parameters=cluster.parameters, sites=cluster.sites, step_s=cluster.step_s)
        needed = needed_gbit_s("data-parallel", traffic, utilisation=UTILISATION)
        said.append(
            f"data parallel between the sites would need {gbit(needed)} for {UTILISATION:.0%} of the chips' time"
        )
    if needs.slowdown > 1.05:
        said.append(
            f"rounds take {needs.slowdown:.2g} steps: a fragment is synchronised every "
            f"{plan.best.choice.sync_period * needs.slowdown:.0f} steps"
        )
    return said


def _shown(priced: Priced) -> str:
    needs = priced.needs
    return (
        f"M = {priced.choice.learners} keeps {needs.goodput:.1%} at about {needs.loss:.2%} more loss, which is worth "
        f"as much as {needs.value:.1%} without it"
    )


def gbit(value: float) -> str:
    """A bandwidth, as people write it."""
    return f"{value:.3g} Gbit/s" if value >= 1 else f"{1000 * value:.3g} Mbit/s"
