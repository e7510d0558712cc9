"""From a plan that fails to the smallest one that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gruppetto.chaos.fuzz import Cores, Outcome, live
from gruppetto.chaos.plan import Plan
from gruppetto.errors import SettingError
from gruppetto.sim import Link, Pace, SyncerCosts

__all__ = ["MAX_TRIES", "Shrunk", "shrink"]

MAX_TRIES = 600
"""Lives that may be spent on one plan."""

PLAIN = {
    "num_fragments": 1,
    "sync_period": 1,
    "rounds_in_flight": 1,
    "overlap_steps": 0,
    "min_quorum": 1,
    "rounds": None,
    "start_learners": None,
    "num_slots": None,
    "when_short": "wait",
    "stale": "reject",
    "apply": "overwrite",
    "durability": "round",
    "snapshot_window": 2,
    "norm_gate": "clip",
    "weight_cap": 8.0,
    "checkpoint_timeout_s": 600.0,
}
"""The settings of a world that nobody has to think about."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest failing plan that was found, what became of it, and how many were tried."""

    plan: Plan
    outcome: Outcome
    tries: int


def shrink(plan: Plan, cores: Cores | None = None, *, max_tries: int = MAX_TRIES) -> Shrunk:
    """Make a failing plan as small as it gets: fewer faults, fewer learners, shorter, simpler.

    A smaller plan counts if the same invariant breaks. Raises :class:`ValueError` for a plan that does not fail.
    """
    search = _Search(plan, cores, max_tries)
    while search.improve():
        pass
    return Shrunk(plan=search.plan, outcome=search.outcome, tries=search.tries)


class _Search:
    def __init__(self, plan: Plan, cores: Cores | None, max_tries: int) -> None:
        self.plan, self._cores, self._max_tries = plan, cores, max_tries
        self.outcome = live(plan, cores)
        if not self.outcome.broken:
            raise ValueError("this plan does not fail")
        self.tries = 1

    def improve(self) -> bool:
        """One round of all ways to be smaller; False when none of them is."""
        before = self.plan
        self._fewer_faults()
        for candidates in (_with_fewer_learners, _shorter, _simpler):
            self._descend(candidates)
        return self.plan != before and self.tries < self._max_tries

    def _fails(self, plan: Plan) -> bool:
        if self.tries >= self._max_tries:
            return False
        self.tries += 1
        outcome = live(plan, self._cores)
        if outcome.broken != self.outcome.broken:
            return False
        self.plan, self.outcome = plan, outcome
        return True

    def _fewer_faults(self) -> None:
        """Delta debugging: drop half of them, a quarter, …, one."""
        size = max(1, len(self.plan.faults) // 2)
        while True:
            at = 0
            while at < len(self.plan.faults):
                kept = self.plan.faults[:at] + self.plan.faults[at + size :]
                if not self._fails(replace(self.plan, faults=kept)):
                    at += size
            if size == 1:
                return
            size //= 2

    def _descend(self, candidates: Callable[[Plan], Iterator[Plan]]) -> None:
        """Take the first candidate that still fails, again and again."""
        while any(self._fails(plan) for plan in candidates(self.plan)):
            pass


def _with_fewer_learners(plan: Plan) -> Iterator[Plan]:
    for out in plan.learners if len(plan.learners) > 1 else ():
        learners = tuple(a for a in plan.learners if a is not out)
        few = len(learners)
        setting = replace(
            plan.setting,
            num_learners=few,
            min_quorum=min(plan.setting.min_quorum, few),
            start_learners=None if plan.setting.start_learners is None else min(plan.setting.start_learners, few),
        )
        faults = tuple(fault for fault in plan.faults if fault.who != out.name)
        yield replace(plan, learners=learners, setting=setting, faults=faults)


def _shorter(plan: Plan) -> Iterator[Plan]:
    last_s = max((fault.at_s for fault in plan.faults), default=0.0)
    for calm_at_s in (last_s + 0.5, (last_s + plan.calm_at_s) / 2):
        if calm_at_s < plan.calm_at_s - 0.4:
            yield replace(plan, calm_at_s=calm_at_s)


def _simpler(plan: Plan) -> Iterator[Plan]:
    if plan.offsets:
        yield replace(plan, offsets=())
    yield from _with_a_plain_setting(plan)
    for i, fault in enumerate(plan.faults):
        if fault.lasts_s:
            yield replace(plan, faults=_put(plan.faults, i, replace(fault, lasts_s=0.0)))
        if fault.how:
            yield replace(plan, faults=_put(plan.faults, i, replace(fault, how="")))
    yield from _with_a_plain_learner(plan)
    if plan.costs != SyncerCosts():
        yield replace(plan, costs=SyncerCosts())


def _with_a_plain_setting(plan: Plan) -> Iterator[Plan]:
    for name, value in PLAIN.items():
        if plan.offsets and name in ("num_fragments", "sync_period"):
            continue  # the offsets belong to them
        if getattr(plan.setting, name) != value:
            try:
                yield replace(plan, setting=replace(plan.setting, **{name: value}))  # type: ignore[arg-type]
            except SettingError:
                continue


def _with_a_plain_learner(plan: Plan) -> Iterator[Plan]:
    for i, learner in enumerate(plan.learners):
        for simple in (
            replace(learner, pace=Pace(step_s=1.0)),
            replace(learner, link=Link()),
            replace(learner, joins_at_s=0.0),
            replace(learner, tokens_per_step=1),
        ):
            if simple != learner:
                yield replace(plan, learners=_put(plan.learners, i, simple))


def _put(values: Sequence[T], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])
