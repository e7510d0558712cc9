"""What a virtual run is told: the world that learners live in, what goes wrong in it, and who comes for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gruppetto.errors import SettingError
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim import LearnerSpec, Link, Pace
from gruppetto.sim.mishaps import SYNCER, Mishap

__all__ = ["Guest", "VirtualSetting", "memory_bytes", "name_of"]


def name_of(m: int) -> str:
    """The m-th learner's."""
    return f"learner-{m}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A learner beyond those of the run, which is there from ``joins_s`` to ``leaves_s`` and leaves on notice."""

    name: str
    joins_s: float
    """When it joins, in virtual seconds."""
    leaves_s: float | None = None
    """When it has notice; none: it stays to the end."""
    step_s: float = 1.0
    """What a step of its own takes."""

    def __post_init__(self) -> None:
        if not 0 <= self.joins_s < math.inf:
            raise SettingError(f"is {self.joins_s}", where="guest.joins_s", fix="use seconds, 0 or more")
        if not 0 < self.step_s < math.inf:
            raise SettingError(f"is {self.step_s}", where="guest.step_s", fix="use more than 0 seconds")
        if self.leaves_s is not None and not self.joins_s < self.leaves_s:
            raise SettingError(
                f"{self.name} leaves at {self.leaves_s:g} s and joins at {self.joins_s:g} s",
                where="guest.leaves_s",
                fix="use a later time",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSetting:
    """What the syncer does to tensors, and the world it does it in. Times are virtual seconds."""

    outer: str | OuterSetting = "auto"
    fragmenter: str = "balanced"
    merge: tuple[tuple[str, str], ...] = ()
    uplink: str = "bf16"
    downlink: str = "fp32"
    feedback: bool = True
    """What a coarse uplink leaves unsaid is said with the next contribution; off only to see what that is worth."""
    names: tuple[str, ...] = ()
    """Of the learners; those without one are learner-0, learner-1 …"""
    step_s: tuple[float, ...] = (1.0,)
    """Step time of each learner; the last one serves all further learners."""
    batch_sizes: tuple[int, ...] = ()
    """Windows a step of each learner, where they differ; the last one serves all further learners and guests."""
    jitter: float = 0.1
    latency_s: float = 0.02
    merge_s: float = 0.05
    persist_s: float = 0.0
    spoilt: tuple[tuple[int, float], ...] = ()
    """(learner, factor): what its contributions are multiplied by before they are sent; NaN spoils them altogether."""
    mishaps: tuple[Mishap, ...] = ()
    """What goes wrong, when, to whom."""
    guests: tuple[Guest, ...] = ()
    donates: bool = True
    """Learners give their state to those who begin in mid-run; without it a checkpoint of their own has to do."""
    rewarm_steps: int = 20
    """Of the learning rate of whoever begins in mid-run with a fresh optimizer."""

    def __post_init__(self) -> None:
        if self.batch_sizes and min(self.batch_sizes) < 1:
            raise SettingError(f"is {min(self.batch_sizes)}", where="virtual.batch_sizes", fix="use 1 or more")

    def learner(self, m: int) -> str:
        """The name of the m-th learner."""
        return self.names[m] if m < len(self.names) else name_of(m)

    def specs(self, protocol: ProtocolSetting, *, keeps_every: int = 0) -> list[LearnerSpec]:
        """Learners and guests. Raises :class:`SettingError` for who is not there, or has no data slot."""
        riders = [(self.learner(m), self._step_s(m), 0.0, None) for m in range(protocol.num_learners)]
        guests = [(guest.name, guest.step_s, guest.joins_s, guest.leaves_s) for guest in self.guests]
        together = [*riders, *guests]
        names = [name for name, *_ in together]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SettingError(f"two learners are called {twice}", where="virtual.guests", fix="name each one once")
        if len(together) > protocol.slots:
            raise SettingError(
                f"{len(together)} learners and guests share {protocol.slots} data slots",
                where="run.num_slots",
                fix=f"use {len(together)} or more",
            )
        for mishap in self.mishaps:
            if mishap.who not in (SYNCER, *names):
                raise SettingError(
                    f"{mishap.who} is no learner of this run", where="fault.who", fix=f"use one of {', '.join(names)}"
                )
        if protocol.reserve and any(mishap.who == SYNCER for mishap in self.mishaps):
            raise SettingError(
                "a syncer that dies here loses no round",
                where="run.durability",
                fix='use durability = "round", or leave its deaths out',
            )
        return [
            LearnerSpec(
                name=name,
                pace=Pace(step_s=step_s, jitter=self.jitter),
                link=Link(latency_s=self.latency_s),
                joins_at=joins_s,
                leaves_at=leaves_s,
                donates=self.donates,
                keeps_every=keeps_every,
            )
            for name, step_s, joins_s, leaves_s in together
        ]

    def factor_of(self, name: str) -> float:
        """What the contributions of this learner are multiplied by."""
        return {self.learner(m): factor for m, factor in self.spoilt}.get(name, 1.0)

    def batch_size_of(self, name: str, usual: int) -> int:
        """The windows that this learner takes a step; ``usual``: where nothing is said."""
        if not self.batch_sizes:
            return usual
        places = {self.learner(m): size for m, size in enumerate(self.batch_sizes)}
        return places.get(name, self.batch_sizes[-1])

    def _step_s(self, m: int) -> float:
        return self.step_s[min(m, len(self.step_s) - 1)]


def memory_bytes(
    numel: int, protocol: ProtocolSetting, *, learners: int, keeps: bool = False, rests: bool = False
) -> int:
    """What the tensors of a virtual run take: 4·N bytes, times for each learner parameters, gradients, two moments and
    bases (5), a fragment for each round of the snapshot window, one for ``carry``, what it keeps (3), and what a coarse
    uplink leaves unsaid (1, and two fragments for each that a round moves, until it is known what counts); and for the
    syncer Θ, momentum and merge (3), with as much again on its way as one round moves.

    >>> memory_bytes(1_000_000, ProtocolSetting(num_learners=4), learners=4) // 1_000_000
    94
    """
    per_round = math.ceil(protocol.num_fragments / protocol.sync_period) / protocol.num_fragments
    copies = 5 + protocol.snapshot_window * per_round + (protocol.apply is ApplyMode.CARRY) + 3 * keeps
    copies += (1 + 2 * per_round) * rests
    return round(4 * numel * (learners * (copies + 2 * per_round) + 3))
