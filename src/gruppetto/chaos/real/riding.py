"""When a learner lived, when it was held, and when it really made progress, by the steps that its processes made."""

from __future__ import annotations

from gruppetto.chaos.real.evidence import Evidence, within_lives
from gruppetto.chaos.real.stretches import without
from gruppetto.trace.measures import joined

__all__ = ["alive", "frozen", "progress"]

STALLED = 4.0
"""A step counts for so many times its usual length at most: what is beyond was no progress."""
FREEZES = ("stop", "slow")
"""While one of these lasts, a learner is not expected to make its usual steps."""
THAW_S = 1.0
"""After that it needs a moment, and the step in progress was long."""


def progress(seen: Evidence, name: str) -> list[tuple[float, float]]:
    """Time that went into steps, each counted for no more than :data:`STALLED` usual ones."""
    longest_s = STALLED * seen.step_s(name)
    pairs = within_lives(seen.steps[name])
    return joined(sorted((max(a.at, b.at - longest_s), b.at) for a, b in pairs)) if pairs else []


def alive(seen: Evidence, name: str) -> list[tuple[float, float]]:
    """From the first step of each of its lives to its death or the end of training, without what froze it."""
    deaths = sorted(f.began for f in seen.done("kill", who=name))
    stretches: list[tuple[float, float]] = []
    for life in seen.lives_of(name):
        steps = [s.at for s in seen.steps[name] if s.life == life.pid]
        if not steps:
            continue
        died = next((at for at in deaths if at >= life.at), seen.ended)
        stretches.append((max(steps[0], seen.began), min(died, seen.ended)))
    stretches = joined(sorted((a, b) for a, b in stretches if b > a))
    return without(stretches, frozen(seen, name))


def frozen(seen: Evidence, name: str) -> list[tuple[float, float]]:
    """While it was stopped or slowed, and a moment after."""
    return joined(sorted((f.began, f.ended + THAW_S) for f in seen.done(*FREEZES, who=name)))
