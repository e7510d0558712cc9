"""From a seed to a plan: small worlds, unequal learners, and a mix of faults that differs from seed to seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from gruppetto.chaos.plan import CRASH_POINTS, DAMAGES, LEAVES, RETURNS, SYNCER, Fault, FaultKind, LearnerPlan, Plan
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim import Link, Pace, SyncerCosts

__all__ = ["draw_plan"]

MAX_FAULTS = 20
_BAD = (FaultKind.HUGE, FaultKind.HUGE, FaultKind.BACKWARD)
"""Drawn apart, so that a seed means the same world with and without them."""
_OF_SYNCER = frozenset(
    {
        FaultKind.CRASH_SYNCER,
        FaultKind.POWER_LOSS,
        FaultKind.PERSIST_FAILS,
        FaultKind.SLOW_SYNCER,
        FaultKind.DIVERGE,
    }
)
_OF_THE_STATE = (FaultKind.DAMAGE, FaultKind.LOST_STATE, FaultKind.TAKE_OVER)
"""Drawn by themselves, so that a seed means the same world otherwise."""
_OF_ALL = (FaultKind.CHECKPOINT, FaultKind.RESUME_ALL)
"""Likewise, in every second world: a resumption without a checkpoint before it is nothing."""


def draw_plan(seed: int) -> Plan:
    """The world of ``seed``.

    >>> draw_plan(7) == draw_plan(7), draw_plan(7) == draw_plan(8)
    (True, False)
    """
    rng = random.Random(f"plan {seed}")
    calm_at_s = rng.choice((8.0, 12.0, 16.0, 24.0, 32.0))
    num_learners = rng.choice((1, 2, 2, 2, 3, 3, 4, 5, 6))
    learners = tuple(_draw_learner(rng, seed, f"{chr(97 + i)}", calm_at_s, first=i == 0) for i in range(num_learners))
    setting = _draw_setting(rng, num_learners)
    gate = random.Random(f"gate {seed}")
    setting = _draw_gate(gate, setting)
    names = [learner.name for learner in learners]
    faults = _draw_faults(rng, names, calm_at_s) + _draw_bad_learners(gate, names, calm_at_s)
    plan = Plan(
        seed=seed,
        setting=setting,
        learners=learners,
        costs=_draw_costs(rng),
        calm_at_s=calm_at_s,
        ping_s=setting.liveness_s * rng.choice((0.5, 1.0, 2.0)),
        goodbye_s=5.0,
        faults=_in_order(faults),
    )
    plan = _with_stops(_with_short_memory(_with_checkpoints(_with_durability(plan))))
    return _with_rest(_with_flight(_with_bounds(_with_offsets(plan))))


def _with_bounds(plan: Plan) -> Plan:
    """In some worlds learners are told how far they may run ahead."""
    rng = random.Random(f"bounds {plan.seed}")
    if rng.random() >= 0.2:
        return plan
    bounds = [rng.choice((None, 0, 1, 1, 2, 4)) for _ in plan.learners]
    learners = [replace(who, max_run_ahead=most) for who, most in zip(plan.learners, bounds, strict=True)]
    return replace(plan, learners=tuple(learners))


def _with_flight(plan: Plan) -> Plan:
    """In some worlds several rounds are open at once, and links may take longer than a step."""
    rng = random.Random(f"flight {plan.seed}")
    if rng.random() >= 0.3:
        return plan
    in_flight = rng.randint(1, min(4, plan.setting.sync_period))
    # So far away, of two processes under one name the older one may be the last to be heard of.
    far = () if any(fault.kind is FaultKind.DOUBLE for fault in plan.faults) else (0.7, 1.3)
    learners = tuple(
        replace(learner, link=Link(latency_s=rng.choice((learner.link.latency_s, *far)))) for learner in plan.learners
    )
    setting = replace(plan.setting, rounds_in_flight=in_flight)
    # Whoever greets hears nothing for a round trip; who gave up sooner would never be back.
    return replace(plan, learners=learners, setting=setting, ping_s=max(plan.ping_s, 4.0))


def _with_offsets(plan: Plan) -> Plan:
    """Some syncers are shards: their fragments are due among those of others."""
    rng = random.Random(f"offsets {plan.seed}")
    if rng.random() >= 0.2:
        return plan
    offsets = sorted(rng.randrange(plan.setting.sync_period) for _ in range(plan.setting.num_fragments))
    return replace(plan, offsets=tuple(offsets))


def _with_rest(plan: Plan) -> Plan:
    """Some runs that have an end go on in other shards when this one has come to its own."""
    rng = random.Random(f"rest {plan.seed}")
    if plan.setting.rounds is None or rng.random() < 0.5:
        return plan
    return replace(plan, goes_on_elsewhere=True)


def _with_stops(plan: Plan) -> Plan:
    """In some worlds somebody keeps the syncer's machine, and stops and starts it in good order."""
    rng = random.Random(f"stops {plan.seed}")
    times = [rng.uniform(0.0, plan.calm_at_s) for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 3)))]
    stops = [
        Fault(at_s=round(at_s, 3), kind=FaultKind.STOP_SYNCER, lasts_s=rng.choice((0.0, 0.5, 2.0))) for at_s in times
    ]
    return replace(plan, faults=_in_order((*plan.faults, *stops)))


def _with_short_memory(plan: Plan) -> Plan:
    """In some worlds the books name hardly anybody who has left."""
    rng = random.Random(f"memory {plan.seed}")
    if rng.random() < 0.5:
        return plan
    return replace(plan, setting=replace(plan.setting, departed_named=rng.choice((0, 0, 1, 2))))


def _with_durability(plan: Plan) -> Plan:
    """Some worlds commit now and then only, and in some the durable state itself is damaged, or changes hands."""
    rng = random.Random(f"durability {plan.seed}")
    setting, faults = plan.setting, list(plan.faults)
    if rng.random() < 0.3:
        every = rng.choice((1, 2, 3, 5, 8, 24))
        setting = replace(setting, durability="interval", durability_rounds=every)
    if rng.random() < 0.4:
        kinds = rng.sample(list(_OF_THE_STATE), k=rng.randint(1, len(_OF_THE_STATE)))
        for _ in range(rng.randint(1, 4)):
            kind, at_s = rng.choice(kinds), rng.uniform(0.0, plan.calm_at_s)
            lasts_s = rng.choice((0.0, 0.1, 0.5, 1.0, 2.0, 4.0))
            faults.append(Fault(at_s=round(at_s, 3), kind=kind, lasts_s=lasts_s, how=rng.choice(DAMAGES[kind])))
            if kind is FaultKind.TAKE_OVER:
                # Somebody has to dial for the two lives to be told apart.
                cuts = [(at_s + rng.uniform(0.0, lasts_s), rng.choice(plan.learners).name) for _ in range(4)]
                faults += [Fault(at_s=round(cut_s, 3), kind=FaultKind.CUT, who=who) for cut_s, who in cuts]
    return replace(plan, setting=setting, faults=_in_order(faults))


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


def _draw_learner(rng: random.Random, seed: int, name: str, calm_at_s: float, *, first: bool) -> LearnerPlan:
    late = not first and rng.random() < 0.2
    # Of a generator of its own, so that the worlds of all seeds stay what they were otherwise.
    giving = random.Random(f"giving {seed} {name}")
    return LearnerPlan(
        name=name,
        pace=Pace(step_s=rng.choice((1.0, 1.0, 1.0, 1.2, 2.0)), jitter=rng.choice((0.0, 0.1, 0.3))),
        link=Link(latency_s=rng.choice((0.0, 0.01, 0.05, 0.05, 0.4))),
        tokens_per_step=rng.randint(1, 9),
        joins_at_s=round(rng.uniform(0.0, calm_at_s), 2) if late else rng.choice((0.0, 0.0, 0.5)),
        recovers=giving.random() < 0.8,
        donates=giving.random() < 0.8,
        chunk_s=giving.choice((0.01, 0.05, 0.3, 1.0)),
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
    by_themselves = (*_BAD, *_OF_THE_STATE, *_OF_ALL, FaultKind.STOP_SYNCER)
    kinds = rng.sample([kind for kind in FaultKind if kind not in by_themselves], k=rng.randint(1, 6))
    faults = [_draw_fault(rng, rng.choice(kinds), names, calm_at_s) for _ in range(rng.randint(0, MAX_FAULTS))]
    return _in_order(faults)


def _draw_gate(rng: random.Random, setting: ProtocolSetting) -> ProtocolSetting:
    return replace(
        setting,
        norm_gate=rng.choice(("clip", "clip", "reject", "reject", "off")),
        weight_cap=rng.choice((8.0, 8.0, 2.0, None)),
    )


def _draw_bad_learners(rng: random.Random, names: list[str], calm_at_s: float) -> tuple[Fault, ...]:
    """In every second world somebody's contributions are finite and bad: one learner's, or those of several at once."""
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        at_s, lasts_s = round(rng.uniform(0.0, calm_at_s), 3), rng.choice((1.0, 4.0, 8.0, 20.0))
        kind, count = rng.choice(_BAD), rng.choice((1, 1, 1, len(names)))
        faults += [Fault(at_s=at_s, kind=kind, who=who, lasts_s=lasts_s) for who in rng.sample(names, count)]
    return tuple(faults)


def _draw_fault(rng: random.Random, kind: FaultKind, names: list[str], calm_at_s: float) -> Fault:
    how = ""
    match kind:
        case FaultKind.CRASH_SYNCER | FaultKind.POWER_LOSS:
            how = rng.choice(CRASH_POINTS)
        case FaultKind.KILL:
            how = rng.choice(RETURNS)
        case FaultKind.LEAVE:
            how = rng.choice(LEAVES)
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


def _with_checkpoints(plan: Plan) -> Plan:
    """In every second world operators take checkpoints, and may resume from them."""
    rng = random.Random(f"checkpoints {plan.seed}")
    if rng.random() < 0.5:
        return plan
    setting = replace(plan.setting, checkpoint_timeout_s=rng.choice((3.0, 8.0, 600.0)))
    kinds = [FaultKind.CHECKPOINT] * rng.randint(1, 4) + [FaultKind.RESUME_ALL] * rng.choice((0, 1, 1, 2))
    faults = [
        Fault(at_s=round(rng.uniform(0.0, plan.calm_at_s), 3), kind=kind, lasts_s=rng.choice((0.0, 0.5, 4.0)))
        for kind in kinds
    ]
    faults += [
        Fault(
            at_s=round(rng.uniform(0.0, plan.calm_at_s), 3),
            kind=FaultKind.KILL,
            who=rng.choice(plan.learners).name,
            lasts_s=rng.choice((0.0, 0.5, 2.0)),
            how="part",
        )
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    return replace(plan, setting=setting, faults=_in_order((*plan.faults, *faults)))


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
