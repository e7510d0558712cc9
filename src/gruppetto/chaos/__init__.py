"""What tries to break it: a deterministic fault fuzzer around the shipping cores, in virtual time.

A seed makes a world and what goes wrong in it (:mod:`~gruppetto.chaos.plan`, :mod:`~gruppetto.chaos.draw`). The cores,
the backlog and the switchboard that ship run in it (:mod:`~gruppetto.chaos.world`): learners
(:mod:`~gruppetto.chaos.learner`, with :mod:`~gruppetto.chaos.holdings` and :mod:`~gruppetto.chaos.transfers`), the
syncer (:mod:`~gruppetto.chaos.syncer`, with :mod:`~gruppetto.chaos.hands`), between them a
:mod:`~gruppetto.chaos.network`, under them a :mod:`~gruppetto.chaos.disk`. :mod:`~gruppetto.chaos.fate` strikes them,
:mod:`~gruppetto.chaos.launcher` starts them again. First anything may fail and nothing may be wrong
(:mod:`~gruppetto.chaos.invariants`, judged by :mod:`~gruppetto.chaos.observers`); then all faults end, and progress
must resume within a bound (:mod:`~gruppetto.chaos.recovery`).

What is found is made small (:mod:`~gruppetto.chaos.shrink`). Wrong cores prove that the fuzzer sees
(:mod:`~gruppetto.chaos.canaries`), and the smallest world is tried out completely (:mod:`~gruppetto.chaos.exhaust`).
"""

from __future__ import annotations

from gruppetto.chaos.draw import draw_plan
from gruppetto.chaos.fuzz import Cores, Outcome, live, swarm
from gruppetto.chaos.plan import Fault, FaultKind, Plan, read_plan, write_plan
from gruppetto.chaos.shrink import shrink

__all__ = [
    "Cores",
    "Fault",
    "FaultKind",
    "Outcome",
    "Plan",
    "draw_plan",
    "live",
    "read_plan",
    "shrink",
    "swarm",
    "write_plan",
]
