"""What a machine and its links can do, from which the simulator prices the syncer's work.

Measured rates may be put here; the defaults are those of one shared core, a plain disk and a link of 10 Gbit/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gruppetto.errors import SettingError
from gruppetto.sim.network import Link
from gruppetto.sim.world import SyncerCosts

__all__ = ["MachineProfile"]

FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """Rates of the syncer's host and of a learner's link to it.

    >>> profile = MachineProfile(fold_elements_per_s=1e9, merge_elements_per_s=1e9, persist_bytes_per_s=8e8)
    >>> profile.costs(fragment_elements=100_000_000)
    SyncerCosts(fold_s=0.1, merge_s=0.1, persist_s=1.0, publish_s=0.0)
    """

    fold_elements_per_s: float = 7e8
    """Float32 elements a second that one contribution is folded at."""
    merge_elements_per_s: float = 1e9
    """... and that the final pass with the outer step takes."""
    persist_bytes_per_s: float = 5e8
    publish_s: float = 0.0
    latency_s: float = 0.02
    link_bytes_per_s: float | None = 1.25e9
    """None: no limit."""
    hosts: int = 1
    """Hosts that share the syncer's work."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            positive = field.name not in ("publish_s", "latency_s")
            if value is None:
                continue
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                fix = f"use more than 0{'' if positive else ', or 0'}"
                raise SettingError(f"{field.name} is {value}", where=f"machine.{field.name}", fix=fix)

    def costs(self, *, fragment_elements: int) -> SyncerCosts:
        """What a round costs with one fragment of so many float32 elements due: value and momentum are persisted."""
        share = fragment_elements / self.hosts
        return SyncerCosts(
            fold_s=share / self.fold_elements_per_s,
            merge_s=share / self.merge_elements_per_s,
            persist_s=2 * FP32_BYTES * share / self.persist_bytes_per_s,
            publish_s=self.publish_s,
        )

    @property
    def link(self) -> Link:
        return Link(latency_s=self.latency_s, bytes_per_s=self.link_bytes_per_s)
