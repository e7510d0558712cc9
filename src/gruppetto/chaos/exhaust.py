"""Every combination of a few faults at a few moments, in the smallest world that has everything twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from gruppetto.chaos.plan import CRASH_POINTS, SYNCER, Fault, FaultKind, LearnerPlan, Plan
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim import Link, Pace, SyncerCosts

__all__ = ["MOMENTS_S", "faults_at", "small_world", "small_worlds"]

MOMENTS_S = (0.0, 1.05, 2.2)
"""Before the first weights; when the first round asks; between two rounds."""


def small_world(faults: tuple[Fault, ...] = (), *, min_quorum: int = 2) -> Plan:
    """Two learners, two fragments, one due a round; a slow disk, so that a crash can fall into every gap."""
    learners = tuple(
        LearnerPlan(name=name, pace=Pace(step_s=step_s), link=Link(latency_s=0.02), tokens_per_step=tokens)
        for name, step_s, tokens in (("a", 1.0, 2), ("b", 1.1, 3))
    )
    return Plan(
        seed=0,
        setting=ProtocolSetting(
            num_learners=2,
            num_fragments=2,
            sync_period=2,
            overlap_steps=1,
            min_quorum=min_quorum,
            liveness_s=2.0,
            start_timeout_s=4.0,
        ),
        learners=learners,
        costs=SyncerCosts(fold_s=0.02, merge_s=0.05, persist_s=0.1, publish_s=0.01),
        calm_at_s=4.0,
        ping_s=1.0,
        goodbye_s=2.0,
        faults=faults,
    )


def faults_at(moment_s: float) -> list[Fault]:
    """The faults that are combined, at one moment."""
    crash = Fault(at_s=moment_s, kind=FaultKind.CRASH_SYNCER, who=SYNCER, lasts_s=0.1)
    return [
        *(replace(crash, how=point) for point in CRASH_POINTS),
        Fault(at_s=moment_s, kind=FaultKind.PERSIST_FAILS, who=SYNCER, lasts_s=0.5),
        Fault(at_s=moment_s, kind=FaultKind.DAMAGE, lasts_s=0.1),
        Fault(at_s=moment_s, kind=FaultKind.LOST_STATE, lasts_s=0.1),
        Fault(at_s=moment_s, kind=FaultKind.TAKE_OVER, lasts_s=1.0, how="mid-commit"),
        Fault(at_s=moment_s, kind=FaultKind.CUT, who="a"),
        Fault(at_s=moment_s, kind=FaultKind.REPLAY, who="a"),
        Fault(at_s=moment_s, kind=FaultKind.KILL, who="a", lasts_s=0.1),
        Fault(at_s=moment_s, kind=FaultKind.LEAVE, who="a", lasts_s=0.1, how="notice"),
    ]


def small_worlds(depth: int = 2) -> Iterator[Plan]:
    """All small worlds with up to ``depth`` faults, in every order; half of them go on with one learner, K = 1.

    >>> sum(1 for _ in small_worlds(1))
    104
    """
    possible = [fault for moment_s in MOMENTS_S for fault in faults_at(moment_s)]
    for count in range(depth + 1):
        for n, faults in enumerate(itertools.combinations(possible, count)):
            for min_quorum in (1, 2) if count < 2 else (1 + n % 2,):
                yield small_world(faults, min_quorum=min_quorum)
