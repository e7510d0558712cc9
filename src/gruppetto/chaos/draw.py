"""From a seed to a plan: small worlds, unequal learners, and a mix of faults that differs from seed to seed."""

from __future__ import annotations

import random

from gruppetto.chaos.plan import CRASH_POINTS, RETURNS, SYNCER, Fault, FaultKind, LearnerPlan, Plan
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim import Link, Pace, SyncerCosts

__all__ = ["draw_plan"]

MAX_FAULTS = 20
_OF_SYNCER = frozenset(
    {
        FaultKind.CRASH_SYNCER,
        FaultKind.POWER_LOSS,
        FaultKind.PERSIST_FAILS,
        FaultKind.SLOW_SYNCER,
        FaultKind.DIVERGE,
    }
)


def draw_plan(seed: int) -> Plan:
    """The world of ``seed``.

    >>> draw_plan(7) == draw_plan(7), draw_plan(7) == draw_plan(8)
    (True, False)
    """
    rng = random.Random(f"plan {seed}")
    calm_at_s = rng.choice((8.0, 12.0, 16.0, 24.0, 32.0))
    num_learners = rng.choice((1, 2, 2, 2, 3, 3, 4, 5, 6))
    learners = tuple(_draw_learner(rng, f"{chr(97 + i)}", calm_at_s, first=i == 0) for i in range(num_learners))
    setting = _draw_setting(rng, num_learners)
    return Plan(
        seed=seed,
        setting=setting,
        learners=learners,
        costs=_draw_costs(rng),
        calm_at_s=calm_at_s,
        ping_s=setting.liveness_s * rng.choice((0.5, 1.0, 2.0)),
        goodbye_s=5.0,
        faults=_draw_faults(rng, [learner.name for learner in learners], calm_at_s),
    )


def _draw_setting(rng: random.Random, num_learners: int) -> ProtocolSetting:
    sync_period = rng.randint(1, 6)
    return ProtocolSetting(
        num_learners=num_learners,
        num_fragments=rng.randint(1, 6),
        sync_period=sync_period,
        overlap_steps=rng.randint(0, min(2, max(0, sync_period - 1))),
        min_quorum=rng.choice((1, 1, rng.randint(1, num_learners), num_learners)),
        rounds=rng.choice((None, None, None, rng.randint(3, 25))),
        grace=rng.random() < 0.8,
        ema_factor=rng.choice((0.1, 0.5)),
        when_short=rng.choice(("wait", "wait", "degrade")),
        stale=rng.choice(("reject", "reject", "accept")),
        snapshot_window=rng.choice((0, 1, 2, 2, 3)),
        apply=rng.choice((ApplyMode.OVERWRITE, ApplyMode.OVERWRITE, ApplyMode.CARRY, ApplyMode.BLEND)),
        liveness_s=rng.choice((2.0, 3.0, 5.0)),
        start_learners=rng.choice((None, None, num_learners)),
        start_timeout_s=4.0,
        num_slots=rng.choice((None, None, num_learners, num_learners + 1)),
    )


def _draw_learner(rng: random.Random, name: str, calm_at_s: float, *, first: bool) -> LearnerPlan:
    late = not first and rng.random() < 0.2
    return LearnerPlan(
        name=name,
        pace=Pace(step_s=rng.choice((1.0, 1.0, 1.0, 1.2, 2.0)), jitter=rng.choice((0.0, 0.1, 0.3))),
        link=Link(latency_s=rng.choice((0.0, 0.01, 0.05, 0.05, 0.4))),
        tokens_per_step=rng.randint(1, 9),
        joins_at_s=round(rng.uniform(0.0, calm_at_s), 2) if late else rng.choice((0.0, 0.0, 0.5)),
    )


def _draw_costs(rng: random.Random) -> SyncerCosts:
    return SyncerCosts(
        fold_s=rng.choice((0.0, 0.01, 0.1)),
        merge_s=rng.choice((0.0, 0.05, 0.3)),
        persist_s=rng.choice((0.0, 0.02, 0.3)),
        publish_s=rng.choice((0.0, 0.01)),
    )


def _draw_faults(rng: random.Random, names: list[str], calm_at_s: float) -> tuple[Fault, ...]:
    """A swarm: every seed has a few kinds of fault only, so that each gets its turn at being frequent."""
    kinds = rng.sample(list(FaultKind), k=rng.randint(1, 6))
    faults = [_draw_fault(rng, rng.choice(kinds), names, calm_at_s) for _ in range(rng.randint(0, MAX_FAULTS))]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_fault(rng: random.Random, kind: FaultKind, names: list[str], calm_at_s: float) -> Fault:
    how = ""
    match kind:
        case FaultKind.CRASH_SYNCER | FaultKind.POWER_LOSS:
            how = rng.choice(CRASH_POINTS)
        case FaultKind.KILL:
            how = rng.choice(RETURNS)
        case FaultKind.HALF_OPEN:
            how = rng.choice(("", "up", "down"))
        case FaultKind.PARTITION:
            how = rng.choice(("", "holds"))
        case _:
            pass
    return Fault(
        at_s=round(rng.uniform(0.0, calm_at_s), 3),
        kind=kind,
        who=SYNCER if kind in _OF_SYNCER else rng.choice(names),
        lasts_s=rng.choice((0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)),
        how=how,
    )
