"""``[virtual]`` and ``[[guest]]``: the world of ``gruppetto train --virtual``, beside a run and its faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from gruppetto.config.kinds import read_list, read_table
from gruppetto.config.run import RunConfig
from gruppetto.errors import SettingError
from gruppetto.sim.compute import Pace
from gruppetto.sim.failures import Recovery
from gruppetto.sim.mishaps import Mishap
from gruppetto.train.virtual_setting import Guest, VirtualSetting

__all__ = ["VIRTUAL_TABLES", "VirtualTable", "read_guests", "read_virtual", "setting_of"]

VIRTUAL_TABLES = ("virtual", "guest")
"""Names in a file that only virtual training reads."""
Rival = Literal["elastic", "data-parallel", "diloco"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTable:
    """``[virtual]``. Times are virtual seconds."""

    step_s: float = 1.0
    """A step of a learner without `slowdown`; `learner.min_step_s` holds here too."""
    jitter: float = 0.1
    """Every step takes between (1 − jitter) and (1 + jitter) times its mean."""
    latency_s: float = 0.02
    """Between a learner and the syncer, each way."""
    merge_s: float = 0.05
    """What an outer step takes."""
    persist_s: float = 0.0
    """What making a round durable takes."""
    away_mean_s: float = 60.0
    """How long a killed learner is away, in the mean."""
    away_shape: float = 1.5
    """Of the exponentiated Weibull distribution of that time."""
    away_power: float = 1.5
    """Its other shape."""
    syncer_restart_s: float = 5.0
    """How long a killed syncer is away."""
    donates: bool = True
    """Learners give their state to those who begin in mid-run."""
    rewarm_steps: int = 20
    """Of the learning rate of whoever begins in mid-run with a fresh optimizer."""
    rivals: tuple[Rival, ...] = ()
    """Systems that go through the same kills, to compare with: `elastic`, `data-parallel`, `diloco`."""

    def __post_init__(self) -> None:
        Pace(step_s=self.step_s, jitter=self.jitter)
        for field in fields(self):
            value = getattr(self, field.name)
            positive = field.name in ("step_s", "away_mean_s", "away_shape", "away_power")
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0 and (value or not positive)):
                fix = "use more than 0" if positive else "use 0 or more"
                raise SettingError(f"is {value}", where=f"virtual.{field.name}", fix=fix)
        if self.rewarm_steps < 0:
            raise SettingError(f"is {self.rewarm_steps}", where="virtual.rewarm_steps", fix="use 0 or more")

    @property
    def recovery(self) -> Recovery:
        """With that mean.

        >>> round(VirtualTable(away_mean_s=40.0).recovery.mean_s, 3)
        40.0
        """
        shape, power = self.away_shape, self.away_power
        one_s = Recovery(scale_s=1.0, shape=shape, power=power).mean_s
        return Recovery(scale_s=self.away_mean_s / one_s, shape=shape, power=power)


def read_virtual(content: Mapping[str, object]) -> VirtualTable:
    """``[virtual]`` of a file. Raises :class:`SettingError`."""
    virtual: VirtualTable = read_table(VirtualTable, content, "virtual")
    return virtual


def read_guests(content: Mapping[str, object]) -> tuple[Guest, ...]:
    """Each ``[[guest]]`` of a file. Raises :class:`SettingError`."""
    return tuple(read_list(Guest, content, "guest"))


def setting_of(
    config: RunConfig, table: VirtualTable, *, guests: tuple[Guest, ...] = (), mishaps: tuple[Mishap, ...] = ()
) -> VirtualSetting:
    """The world of a run: its learners by name, each at its own pace."""
    outer, _ = config.resolved_outer()
    learners = config.learners
    return VirtualSetting(
        outer=outer,
        fragmenter=config.fragments.how,
        merge=config.merge.rules,
        uplink=config.codec.uplink,
        downlink=config.codec.downlink,
        names=tuple(entry.name for entry in learners),
        step_s=tuple(max(table.step_s * entry.slowdown, entry.min_step_s) for entry in learners),
        jitter=table.jitter,
        latency_s=table.latency_s,
        merge_s=table.merge_s,
        persist_s=table.persist_s,
        mishaps=mishaps,
        guests=guests,
        donates=table.donates,
        rewarm_steps=table.rewarm_steps,
    )
