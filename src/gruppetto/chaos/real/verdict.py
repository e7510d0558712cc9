"""The verdict about a run under chaos: every invariant, then what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from gruppetto.chaos.real.check import Verdict
from gruppetto.chaos.real.costs import COSTS
from gruppetto.chaos.real.evidence import Evidence
from gruppetto.chaos.real.invariants import INVARIANTS
from gruppetto.chaos.real.plan import Expectations

__all__ = ["judge"]


def judge(seen: Evidence, expect: Expectations, *, compare: Sequence[float] = ()) -> Verdict:
    """``compare``: the last held-out losses of runs without faults."""
    return Verdict(checks=tuple(check(seen, expect, compare) for check in (*INVARIANTS, *COSTS)))
