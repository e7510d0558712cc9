"""What the paper reports of goodput, and the constants that it does not print (section 12).

MTBI is one year a chip. The constants are one set for the whole grid, found by ``experiments/fit_goodput.py``; how well
each is known stands in ``docs/simulator.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.sim.elastic import ElasticCosts
from gruppetto.sim.failures import Recovery
from gruppetto.sim.rivals import RestartCosts

__all__ = ["CHIPS", "ELASTIC_AT_2_4M", "FITTED", "GOODPUT", "LEARNERS", "Hardware", "usual_slice"]

CHIPS = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
"""The sizes of our grid. The paper's cells known to us are those of 150k, 600k and 1.2M, and one of 2.4M."""
LEARNERS = (2, 4, 8, 16)
ELASTIC_AT_2_4M = 0.40

GOODPUT: dict[tuple[str, int], dict[int, float]] = {
    ("data-parallel", 1): {150_000: 0.72, 600_000: 0.38, 1_200_000: 0.27},
    ("elastic", 1): {150_000: 0.88, 600_000: 0.69, 1_200_000: 0.58, 2_400_000: ELASTIC_AT_2_4M},
    ("decoupled", 2): {150_000: 0.94, 600_000: 0.80, 1_200_000: 0.70},
    ("decoupled", 4): {150_000: 0.96, 600_000: 0.89, 1_200_000: 0.82},
    ("decoupled", 8): {150_000: 0.98, 600_000: 0.94, 1_200_000: 0.88},
    ("decoupled", 16): {150_000: 0.99, 600_000: 0.96, 1_200_000: 0.93},
}
"""(system, learners) → chips → goodput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """How a cluster breaks and mends, beyond the mean time between interruptions."""

    elastic: ElasticCosts
    recovery: Recovery
    """Of a slice of which a chip has failed."""
    restart: RestartCosts
    """Of the job without elasticity."""


FITTED = Hardware(
    elastic=ElasticCosts(slice_chips=256, scale_down_s=10.0, scale_up_s=10.0),
    recovery=Recovery(scale_s=2190.0, shape=1.5, power=1.5),  # 40 minutes in the mean
    restart=RestartCosts(restart_s=70.0, checkpoint_s=5.0),
)

LARGE_CLUSTER = 32_768
HOST_CHIPS = 8


def usual_slice(chips: int) -> int:
    """Chips that go together, where nothing else is known: a host in a small cluster, the fitted slice in a large one.

    >>> usual_slice(64), usual_slice(1_200_000)
    (8, 256)
    """
    return FITTED.elastic.slice_chips if chips >= LARGE_CLUSTER else HOST_CHIPS
