"""Every wrong core is caught, soon, and by those who should notice."""

from __future__ import annotations

import pytest

from gruppetto.chaos import swarm
from gruppetto.chaos.canaries import CANARIES, Canary
from gruppetto.chaos.observers import WORLD_INVARIANTS
from gruppetto.protocol.invariants import INVARIANTS


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_a_wrong_core_is_caught(canary: Canary) -> None:
    found = next((o for o in swarm(range(canary.within), canary.cores) if o.broken), None)
    assert found is not None, f"{canary.name} lives through {canary.within} seeds"
    assert found.broken in canary.caught_by, found.what


def test_hardly_an_invariant_is_without_a_canary() -> None:
    """``one-value-per-version`` and these of the protocol's own are broken only where another one breaks first."""
    judged = {name for canary in CANARIES for name in canary.caught_by}
    assert set(WORLD_INVARIANTS) - judged <= {"one-value-per-version"}
    assert set(INVARIANTS) - judged <= {"one-round-at-a-time", "weights-are-positive", "own-epoch"}
