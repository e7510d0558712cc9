"""What goes wrong in a world of learners and a syncer: when, to whom, for how long. Kinds are named as in chaos plans.

A plan is drawn once from a seed, before anything lives; every system that is compared is given the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gruppetto.errors import SettingError
from gruppetto.sim.failures import Recovery

__all__ = ["SYNCER", "Mishap", "MishapKind", "draw_kills", "with_recovery"]

SYNCER = "syncer"


class MishapKind(StrEnum):
    """What can go wrong."""

    KILL = "kill"
    """A process dies, and a new one is there after ``lasts_s``; infinite: never. Of a learner or the syncer."""
    LEAVE = "leave"
    """A learner has notice: it ends its step, gives what it has of every fragment, and goes."""
    STOP = "stop"
    """A learner hangs: it neither trains nor hears for ``lasts_s``, and nobody is told."""
    SLOW = "slow"
    """Steps that a learner begins meanwhile get ``share`` of its time."""
    CUT = "cut"
    """A learner's link to the syncer is down, and both know."""
    LATENCY = "latency"
    """Everything between a learner and the syncer takes ``delay_s`` more, each way."""
    NAN = "nan"
    """A learner's contributions hold NaN."""
    SCALE = "scale"
    """A learner's contributions are ``factor`` times as large."""


_DIALS: dict[str, tuple[MishapKind, Callable[[float], bool], str]] = {
    "share": (MishapKind.SLOW, lambda value: 0 < value <= 1, "use a share above 0, up to 1"),
    "factor": (MishapKind.SCALE, math.isfinite, "use a finite number"),
    "delay_s": (MishapKind.LATENCY, lambda value: 0 <= value < math.inf, "use seconds, 0 or more"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """One thing that goes wrong, at ``at_s`` virtual seconds. ``lasts_s`` may be infinite.

    >>> Mishap(at_s=1.0, kind=MishapKind.SLOW, who="anna", share=0.0)
    Traceback (most recent call last):
    gruppetto.errors.SettingError: fault.share: is 0; use a share above 0, up to 1
    """

    at_s: float
    kind: MishapKind
    who: str
    lasts_s: float = math.inf
    share: float = 0.25
    factor: float = 1000.0
    delay_s: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", MishapKind(self.kind))
        if not 0 <= self.at_s < math.inf:
            raise SettingError(f"is {self.at_s}", where="fault.at_s", fix="use seconds, 0 or more")
        if not self.lasts_s >= 0:
            raise SettingError(f"is {self.lasts_s}", where="fault.lasts_s", fix="use seconds, 0 or more")
        if self.kind is MishapKind.STOP and math.isinf(self.lasts_s):
            raise SettingError("a stop has an end", where="fault.lasts_s", fix="use a kill for what never comes back")
        for name, (kind, fits, fix) in _DIALS.items():
            if self.kind is kind and not fits(getattr(self, name)):
                raise SettingError(f"is {getattr(self, name):g}", where=f"fault.{name}", fix=fix)
        if self.who == SYNCER and self.kind is not MishapKind.KILL:
            raise SettingError(
                f"{self.kind.value} does not befall the syncer here", where="fault.who", fix="name a learner, or kill"
            )


def draw_kills(
    learners: Sequence[str], *, per_hour: float, lasts_s: float, seed: int, recovery: Recovery
) -> tuple[Mishap, ...]:
    """Kills of learners over the first ``lasts_s`` seconds, ``per_hour`` of them all together, each with its recovery.

    When and whom is what ``kill_learner_per_hour`` draws in a chaos plan with the same seed.

    >>> once = Recovery(scale_s=20.0)
    >>> drawn = draw_kills(("a", "b"), per_hour=60.0, lasts_s=600.0, seed=1, recovery=once)
    >>> drawn == draw_kills(("a", "b"), per_hour=60.0, lasts_s=600.0, seed=1, recovery=once), len(drawn)
    (True, 9)
    """
    when, whom = random.Random(f"{seed}:kill_learner_per_hour"), random.Random(f"{seed}:who")
    kills: list[Mishap] = []
    at_s = when.expovariate(per_hour / 3600) if per_hour else math.inf
    while at_s < lasts_s:
        kills.append(Mishap(at_s=round(at_s, 3), kind=MishapKind.KILL, who=whom.choice(list(learners))))
        at_s += when.expovariate(per_hour / 3600)
    return with_recovery(kills, recovery, seed=seed)


def with_recovery(mishaps: Sequence[Mishap], recovery: Recovery, *, seed: int) -> tuple[Mishap, ...]:
    """Every kill that has no end of its own gets one, drawn from ``seed``."""
    rng = random.Random(f"{seed}:recovery")
    return tuple(
        replace(mishap, lasts_s=round(recovery.draw_s(rng), 3))
        if mishap.kind is MishapKind.KILL and math.isinf(mishap.lasts_s)
        else mishap
        for mishap in mishaps
    )
