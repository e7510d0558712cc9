"""What a choice costs in loss, by the evidence there is, and what a loss is worth in compute.

Rough on purpose: every constant has its source, and a plan shows the estimate beside the goodput that it is weighed
against. Losses are relative, 0.01 for one per cent.
"""

from __future__ import annotations

import math

__all__ = ["CODEC_LOSS", "codec_loss", "compute_share", "flight_loss", "learners_loss", "period_loss"]

SMALL, SMALL_LOSS = 35e6, 0.039
LARGE, LARGE_LOSS = 2.4e9, 0.011
"""Eight learners against data parallel, plain averaging, by parameters (scaling laws for DiLoCo, arXiv 2503.09799)."""
RDA_SHARE = 0.5
"""What radial-directional averaging leaves of that [ours]. Generous: four learners of 0.2M parameters are 3.4 % behind
data parallel (docs/evidence.md), a quarter of what plain averaging would cost by the figures above; and the paper finds
no difference at 5B with eight."""
PERIOD_LOSS = 0.0025
"""For every doubling of H beyond 24: DiLoCo's perplexity rises by 2.9 % from H = 50 to 1,000 (arXiv 2311.08105)."""
USUAL_PERIOD = 24.0
FLIGHT_LOSS = 0.001
"""For every doubling of the flight beyond 2 steps [ours]; Streaming DiLoCo sees nothing up to 5 steps."""
USUAL_FLIGHT = 2.0
CODEC_LOSS = {"fp32": 0.0, "bf16": 0.0, "int8": 0.0002, "int4": 0.0009}
"""Of outer gradients. Below four bits the paper's losses are 32 % and more: never chosen."""
DOWNLINK_LOSS = {"fp32": 0.0, "bf16": 0.0005, "delta": CODEC_LOSS["int8"], "delta-int4": CODEC_LOSS["int4"]}
"""Of global fragments [ours]: the syncer keeps float32, and learners begin at what they were given. Steps cost what the
same words cost on their way up; measured is less (docs/performance.md)."""
LOSS_EXPONENT = 0.05
"""Loss falls as compute to this power (Kaplan et al. 2020), so that one per cent of loss is a fifth of the compute."""


def learners_loss(learners: int, parameters: int) -> float:
    """What M learners lose against one, all tokens together the same.

    Between and beyond the two sizes a power of the parameters; in proportion to log2 M.

    >>> round(learners_loss(8, 35_000_000) / RDA_SHARE, 4), learners_loss(1, 35_000_000)
    (0.039, 0.0)
    """
    power = math.log(SMALL_LOSS / LARGE_LOSS) / math.log(LARGE / SMALL)
    return float(RDA_SHARE * SMALL_LOSS * (parameters / SMALL) ** -power * math.log2(learners) / 3)


def period_loss(steps: float) -> float:
    """What ``steps`` inner steps between two synchronisations of a fragment cost.

    >>> period_loss(24), period_loss(96)
    (0.0, 0.005)
    """
    return PERIOD_LOSS * max(0.0, math.log2(steps / USUAL_PERIOD))


def flight_loss(steps: float) -> float:
    """What ``steps`` inner steps from a snapshot to the merged value cost."""
    return FLIGHT_LOSS * max(0.0, math.log2(max(steps, 1e-9) / USUAL_FLIGHT))


def codec_loss(uplink: str, downlink: str) -> float:
    """Infinite for what there is no good evidence for."""
    return CODEC_LOSS.get(uplink, math.inf) + DOWNLINK_LOSS.get(downlink, math.inf)


def compute_share(loss: float) -> float:
    """The share of the compute that would give the same loss without this penalty.

    >>> round(compute_share(0.01), 2)
    0.82
    """
    return math.exp(-loss / LOSS_EXPONENT)
