"""A plan: a run, and what goes wrong in it when. Written in TOML by a person, resolved to a list of faults.

::

    [chaos]                              [rates]                            [[fault]]
    seed = 7                             kill_learner_per_hour = 31.25      at_s = 20
    lasts_s = 600                        stop_syncer_per_hour = 6           kind = "stop"
    standby = false                                                         who = "anna"
    impossible = "refuse"                                                   lasts_s = 12

    [compare]                            [expect]                           [run] [model] [[learner]] ...
    seeds = [0, 1]                       max_recovery_s = 30                as in a RUN.toml

Times count from the moment at which training begins. :mod:`~gruppetto.chaos.real.reading` reads such a file.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from gruppetto.chaos.real.kinds import DIALS, KINDS, SYNCER, WAYS
from gruppetto.config import RunConfig
from gruppetto.config.kinds import check_keys, shown
from gruppetto.errors import SettingError

__all__ = ["ChaosSetting", "CompareSetting", "Expectations", "LiveFault", "LivePlan"]

MAX_LASTS_S = 7 * 86_400.0
"""A week. Nobody waits longer, and what is drawn is drawn before anything runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFault:
    """One thing that goes wrong. What its kind does not take is None; see :data:`~gruppetto.chaos.real.kinds.KINDS`.

    >>> print(LiveFault(at_s=3, kind="latency", who="anna", lasts_s=5))
        3.0 s  latency anna for 5 s, delay_s 0.05, jitter_s 0, both
    >>> LiveFault(at_s=3, kind="kill", who="anna", share=0.5)
    Traceback (most recent call last):
    gruppetto.errors.SettingError: fault.share: a kill has none; leave it out
    """

    at_s: float
    kind: str
    who: str = ""
    """A learner's name, ``syncer``, or nothing: a learner that the seed picks."""
    lasts_s: float | None = None
    share: float | None = None
    delay_s: float | None = None
    jitter_s: float | None = None
    mbit_per_s: float | None = None
    by_s: float | None = None
    factor: float | None = None
    way: str | None = None

    def __post_init__(self) -> None:
        check_keys([self.kind], KINDS, where="fault.kind")
        kind = KINDS[self.kind]
        if not (self.at_s >= 0 and math.isfinite(self.at_s)):
            raise SettingError(f"is {self.at_s}", where="fault.at_s", fix="use seconds, 0 or more")
        if self.lasts_s is None:
            object.__setattr__(self, "lasts_s", kind.lasts_s)
        elif not self.lasts_s >= 0:
            raise SettingError(f"is {self.lasts_s}", where="fault.lasts_s", fix="use seconds, 0 or more")
        elif self.lasts_s and not kind.can_last:
            raise SettingError(f"a {self.kind} is over at once", where="fault.lasts_s", fix="leave it out")
        for name, (low, high) in DIALS.items():
            value = getattr(self, name)
            if name not in kind.takes:
                if value is not None:
                    raise SettingError(f"a {self.kind} has none", where=f"fault.{name}", fix="leave it out")
            elif value is None:
                object.__setattr__(self, name, kind.takes[name])
            elif not low <= value <= high:
                raise SettingError(f"is {value:g}", where=f"fault.{name}", fix=f"use {low:g} to {high:g}")
        if self.way is not None and not kind.has_way:
            raise SettingError(f"a {self.kind} goes both ways", where="fault.way", fix="leave it out")
        if kind.has_way:
            object.__setattr__(self, "way", self.way or WAYS[0])
            if self.way not in WAYS:
                raise SettingError(f"is {shown(self.way)}", where="fault.way", fix=f"use one of {', '.join(WAYS)}")

    @property
    def duration_s(self) -> float:
        assert self.lasts_s is not None
        return self.lasts_s

    @property
    def dials(self) -> dict[str, float]:
        """What its kind takes, in numbers."""
        return {name: getattr(self, name) for name in KINDS[self.kind].takes}

    def __str__(self) -> str:
        lasts = "" if not self.lasts_s else " to the end" if math.isinf(self.duration_s) else f" for {self.lasts_s:g} s"
        more = [f"{name} {value:g}" for name, value in self.dials.items()]
        more += [self.way] if self.way is not None else []
        return f"{self.at_s:7.1f} s  {self.kind} {self.who}{lasts}{''.join(f', {each}' for each in more)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosSetting:
    """``[chaos]``."""

    seed: int = 0
    """Of everything that is drawn."""
    lasts_s: float = 600.0
    """Drawn faults come within so many seconds of training."""
    standby: bool = False
    """A second syncer waits for the first one to die: ``launch.standby`` of the run."""
    impossible: Literal["refuse", "skip"] = "refuse"
    """What becomes of a plan with a fault that this machine cannot do."""

    def __post_init__(self) -> None:
        if not 0 < self.lasts_s <= MAX_LASTS_S:
            raise SettingError(
                f"is {self.lasts_s:g}",
                where="chaos.lasts_s",
                fix=f"use seconds, more than 0 and at most {MAX_LASTS_S:.0f} (a week)",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSetting:
    """``[compare]``: the same run without faults, once for each of these seeds."""

    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """``[expect]``: figures that must be reached, beside the invariants. None: it is measured, and nobody minds."""

    min_uptime: float = 0.999
    """Share of the time, while at least one learner lives, in which somebody makes a step."""
    min_participation: float | None = None
    """Share of the live learners merged in a round, on average."""
    min_throughput: float | None = None
    """Share of the time of learners that live and are left alone which they spend in steps of their usual length."""
    max_recovery_s: float | None = None
    """From the kill of a learner to its first merged round, at most."""
    max_syncer_gap_s: float | None = None
    """From the kill of the syncer to the next published round, at most."""
    max_missed_heartbeats: float | None = None
    """Heartbeats that got no answer in time though nothing had cut off or stopped who sent or who should answer."""
    max_loss_rise: float | None = None
    """Of the last held-out loss over that of the mean run without faults, as a share of it."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not 0 <= value < math.inf:
                raise SettingError(f"is {value}", where=f"expect.{f.name}", fix="use a number, 0 or more")
            if value is not None and f.name.startswith("min_") and value > 1:
                raise SettingError(f"is {value}", where=f"expect.{f.name}", fix="use a share from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """A whole plan, resolved: every fault has its moment and its victim, in order."""

    run: RunConfig
    chaos: ChaosSetting = field(default_factory=ChaosSetting)
    faults: tuple[LiveFault, ...] = ()
    compare: CompareSetting = field(default_factory=CompareSetting)
    expect: Expectations = field(default_factory=Expectations)

    def __post_init__(self) -> None:
        if self.chaos.standby and not self.run.launch.standby:
            launch = replace(self.run.launch, standby=True)
            object.__setattr__(self, "run", replace(self.run, launch=launch))
        names = [entry.name for entry in self.run.learners]
        if self.run.mode != "decoupled":
            raise SettingError(
                f"is {self.run.mode}",
                where="run.mode",
                fix="use decoupled: gruppetto train has rivals on their own without --virtual, and with it those that "
                "virtual.rivals names beside a decoupled run (elastic, data-parallel, diloco)",
            )
        if SYNCER in names:
            raise SettingError(f"a learner is called {SYNCER}", where="learner.name", fix="call it otherwise")
        if self.run.syncer.tls_cert is not None or self.run.syncer.certs is not None:
            raise SettingError(
                "the links pass through a proxy under another address", where="syncer.tls_cert", fix="leave TLS out"
            )
        if self.run.syncer.shards > 1:
            raise SettingError("faults are for a run with one syncer", where="syncer.shards", fix="use 1")
        for fault in self.faults:
            hits = KINDS[fault.kind].hits
            if fault.who not in (SYNCER, *names):
                check_keys([fault.who], [SYNCER, *names], where="fault.who")
            if (SYNCER if fault.who == SYNCER else "learner") not in hits:
                whom = "the syncer" if SYNCER in hits else "a learner"
                raise SettingError(f"{fault.kind} hits {whom}, not {fault.who}", where="fault.who", fix=f"name {whom}")
            if fault.kind == "takeover" and not self.run.launch.standby:
                raise SettingError("there is no standby", where="fault.kind", fix="say standby = true in [chaos]")

    def as_json(self) -> dict[str, Any]:
        """What goes wrong in what run, in plain values; null for a fault that lasts to the end."""
        faults = [{name: value for name, value in asdict(fault).items() if value is not None} for fault in self.faults]
        for fault in faults:
            if math.isinf(fault["lasts_s"]):
                fault["lasts_s"] = None
        return {
            "faults": faults,
            "learners": [entry.name for entry in self.run.learners],
            "chaos": asdict(self.chaos),
            "compare": asdict(self.compare),
            "expect": asdict(self.expect),
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults)) or "nothing goes wrong"
