"""What can go wrong with real processes and real connections, as a table.

A new kind is one row here, and one case in :mod:`gruppetto.chaos.real.faults` or :mod:`gruppetto.chaos.real.link`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["DIALS", "KINDS", "LINK_KINDS", "SYNCER", "WAYS", "Kind"]

SYNCER = "syncer"
"""Whom a fault hits when it hits no learner. On a link it means the links of all learners."""
WAYS = ("both", "up", "down")
"""Of a link: to the syncer and back, only to the syncer, only back."""
DIALS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "share": (0.0, 1.0),
        "delay_s": (0.0, 60.0),
        "jitter_s": (0.0, 60.0),
        "mbit_per_s": (0.01, 100_000.0),
        "by_s": (-1e9, 1e9),
        "factor": (-1e9, 1e9),
    }
)
"""What a fault can be told in numbers, and between which bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault. ``takes``: its dials with their defaults."""

    says: str
    hits: frozenset[str]
    lasts_s: float = 0.0
    """How long it lasts unless the plan says otherwise. 0: a moment; infinite: to the end of the run."""
    can_last: bool = True
    takes: Mapping[str, float] = field(default_factory=dict)
    has_way: bool = False


_ANYBODY = frozenset({"learner", "syncer"})
_LEARNER = frozenset({"learner"})
_SYNCER = frozenset({"syncer"})

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "kill": Kind(says="kill -9; whoever launched it starts it again", hits=_ANYBODY, can_last=False),
        "stop": Kind(says="SIGSTOP, later SIGCONT: a machine that hangs", hits=_ANYBODY, lasts_s=15.0),
        "slow": Kind(
            says="it gets this share of its time: SIGSTOP and SIGCONT in turn, five times a second",
            hits=_ANYBODY,
            lasts_s=20.0,
            takes={"share": 0.25},
        ),
        "cut": Kind(says="its connections are reset (RST); while it lasts new ones too", hits=_ANYBODY),
        "half-open": Kind(
            says="its present connections swallow everything, and nobody is told; new ones are well",
            hits=_ANYBODY,
            can_last=False,
            has_way=True,
        ),
        "partition": Kind(
            says="nothing passes; what was said is held on the way and comes late", hits=_ANYBODY, lasts_s=15.0
        ),
        "latency": Kind(
            says="everything takes so much longer",
            hits=_ANYBODY,
            lasts_s=math.inf,
            takes={"delay_s": 0.05, "jitter_s": 0.0},
            has_way=True,
        ),
        "loss": Kind(
            says="this share of packets is lost, as TCP lets one feel it: waits for retransmission, resets at worst",
            hits=_ANYBODY,
            lasts_s=math.inf,
            takes={"share": 0.02},
            has_way=True,
        ),
        "bandwidth": Kind(
            says="no more than this passes, all connections together",
            hits=_ANYBODY,
            lasts_s=math.inf,
            takes={"mbit_per_s": 10.0},
            has_way=True,
        ),
        "corrupt": Kind(
            says="in this share of large chunks, so within bodies, one bit is flipped",
            hits=_ANYBODY,
            lasts_s=20.0,
            takes={"share": 0.2},
            has_way=True,
        ),
        "nan": Kind(says="every contribution holds NaN", hits=_LEARNER, lasts_s=math.inf),
        "scale": Kind(
            says="every contribution is so many times as large",
            hits=_LEARNER,
            lasts_s=math.inf,
            takes={"factor": 1000.0},
        ),
        "clock": Kind(
            says="the wall clock of its process jumps; a new process has the right time again",
            hits=_ANYBODY,
            lasts_s=math.inf,
            takes={"by_s": -3600.0},
        ),
        "disk-full": Kind(
            says="the disk under the syncer's state has no room: a small tmpfs, filled up", hits=_SYNCER, lasts_s=10.0
        ),
        "takeover": Kind(
            says="kill -9 of the syncer once a standby waits, which takes over", hits=_SYNCER, can_last=False
        ),
    }
)

LINK_KINDS = frozenset({"cut", "half-open", "partition", "latency", "loss", "bandwidth", "corrupt"})
"""Done by the proxy between a learner and the syncer."""
