"""Run plans, one seed after another, and say what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gruppetto.chaos.disk import Disk
from gruppetto.chaos.draw import draw_plan
from gruppetto.chaos.invariants import BrokenWorldError
from gruppetto.chaos.plan import Plan
from gruppetto.chaos.world import World
from gruppetto.protocol.invariants import BrokenInvariantError
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.trace.log import TraceWriter

__all__ = ["RAISED", "Cores", "Outcome", "live", "swarm"]

RAISED = "cores-never-raise"
"""The name of what is broken when a core, or its shell, raises by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Who decides. Canaries put wrong ones here."""

    syncer: Callable[..., SyncerCore] = SyncerCore
    learner: Callable[..., LearnerCore] = LearnerCore
    disk: Callable[..., Disk] = Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a plan. ``broken`` names the invariant that did not hold; "" if all did."""

    plan: Plan = field(repr=False)
    broken: str
    what: str
    at_s: float
    events: int
    digest: int


def live(plan: Plan, cores: Cores | None = None, *, trace: TraceWriter | None = None) -> Outcome:
    """Live through ``plan`` once.

    >>> outcome = live(draw_plan(1))
    >>> outcome.broken, live(draw_plan(1)).digest == outcome.digest
    ('', True)
    """
    who = cores or Cores()
    world = World(plan, make_learner=who.learner, make_syncer=who.syncer, make_disk=who.disk, trace=trace)
    broken = what = ""
    try:
        world.run()
    except (BrokenWorldError, BrokenInvariantError) as found:
        broken, what = found.name, str(found)
    except Exception as wrong:
        broken, what = RAISED, f"{type(wrong).__name__}: {wrong}"
    return Outcome(plan=plan, broken=broken, what=what, at_s=world.engine.now, events=world.events, digest=world.digest)


def swarm(seeds: Iterable[int], cores: Cores | None = None) -> Iterator[Outcome]:
    """The worlds of these seeds, one after another."""
    for seed in seeds:
        yield live(draw_plan(seed), cores)
