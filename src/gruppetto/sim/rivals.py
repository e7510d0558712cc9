"""What decoupled learners are compared with, under the very same faults (section 12).

Data parallel without elasticity, elastic data parallel, and synchronous DiLoCo, whose learners meet every H steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gruppetto.sim.elastic import ElasticJob
from gruppetto.sim.failures import Fault
from gruppetto.sim.tally import Tally

__all__ = ["RestartCosts", "data_parallel", "diloco", "elastic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCosts:
    """What an interruption costs a job that knows no elasticity. Spare chips stand in for those that are away."""

    restart_s: float
    """From the interruption to the first new step."""
    checkpoint_s: float
    """Training time between two checkpoints; what was done since the last one is done again."""


def data_parallel(faults: Iterable[Fault], *, chips: int, horizon_s: float, costs: RestartCosts) -> Tally:
    """One job on all chips that stops at every fault. Faults during a restart cost nothing more.

    >>> hit = [Fault(at_s=25.0, first_chip=0, num_chips=1, down_s=600.0)]
    >>> costs = RestartCosts(restart_s=30.0, checkpoint_s=10.0)
    >>> data_parallel(hit, chips=4, horizon_s=100.0, costs=costs).goodput  # 20 s kept, 5 lost, 30 to restart, 45 left
    0.65
    """
    tally = Tally(chips=chips, parties=1, horizon_s=horizon_s)
    tally.goes(0, 0.0)
    now = 0.0
    for fault in faults:
        if fault.at_s >= horizon_s:
            break
        if fault.at_s < now:
            continue
        kept_s = fault.at_s - now
        if not fault.notice:
            kept_s = math.floor(kept_s / costs.checkpoint_s) * costs.checkpoint_s
        tally.trained(now, now + kept_s, chips=chips)
        tally.stops(0, now + kept_s)
        now = fault.at_s + costs.restart_s
        tally.goes(0, now)
    tally.trained(now, horizon_s, chips=chips)
    return tally


def elastic(job: ElasticJob, *, step_s: float, horizon_s: float) -> Tally:
    """One job on all chips that pauses to go on without a lost slice, and to take it in again."""
    return diloco([job], step_s=step_s, sync_period=1, horizon_s=horizon_s)


def diloco(jobs: Sequence[ElasticJob], *, step_s: float, sync_period: int, horizon_s: float) -> Tally:
    """Elastic learners that all wait for the last one after every ``sync_period`` steps."""
    tally = Tally(chips=sum(job.all_chips for job in jobs), parties=len(jobs), horizon_s=horizon_s)
    for party in range(len(jobs)):
        tally.goes(party, 0.0)
    met = 0.0
    while met < horizon_s:
        turns: list[tuple[float, int, bool]] = []
        ends = []
        for party, job in enumerate(jobs):
            now, made = met, 0
            while made < sync_period:
                stretch = job.train(now, step_s)
                if stretch.began_s > now:
                    turns += ((now, party, False), (stretch.began_s, party, True))
                tally.trained(stretch.began_s, stretch.done_s, chips=stretch.chips)
                now, made = stretch.done_s, made + stretch.steps
            ends.append(now)
        met = max(ends)
        for party, end in enumerate(ends):
            if end < met:
                turns += ((end, party, False), (met, party, True))
        for at_s, party, goes in sorted(turns, key=lambda turn: turn[0]):
            (tally.goes if goes else tally.stops)(party, at_s)
    return tally
