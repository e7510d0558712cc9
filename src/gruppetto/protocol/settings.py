"""What a run may be told about its protocol, with the defaults of the algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from gruppetto.errors import SettingError
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.overwriting import overwriting_notice
from gruppetto.protocol.schedule import Schedule

__all__ = ["ProtocolSetting"]

MAX_FRAGMENTS = 4096
MAX_SYNC_PERIOD = 1_000_000
MAX_WINDOW = 1024
MAX_IN_FLIGHT = 64
"""Running merges are kept for the fragments of so many rounds."""
LEAST_EXCESS = 2.0
"""Half of all honest contributions are longer, and heavier, than their median."""
MAX_LEARNERS = 4096
"""A bound on membership, so that no stream of fresh names can fill the syncer's memory."""
MAX_ROUNDS = 10**12
"""Far below what counters of rounds may say to others, so that a run with an end gets there."""
LEAST_LIVENESS_S = 0.01
"""What is said within less is not heard in time, on any machine."""
MAX_SECONDS = 1e6
"""Eleven days. Waiting for much longer overflows in the system's own calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSetting:
    """The protocol's dials. Every impossible value is refused with the fix.

    >>> ProtocolSetting(min_quorum=5, num_learners=4)
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: run.min_quorum: min_quorum is 5 but num_learners is 4; use 4 or less, or add learners
    """

    num_learners: int = 1
    """M, the learners expected. More may join, fewer may come: only the quorum is needed."""
    num_fragments: int = 24
    """P. Lowered with a notice when the model has fewer tensors."""
    sync_period: int = 24
    """H: rounds between two synchronisations of one fragment."""
    overlap_steps: int = 2
    """τ: inner steps during which a fragment may be in flight without costing anyone anything."""
    rounds_in_flight: int = 1
    """D: so many consecutive rounds may be open at once, and an answer has D steps to be asked for and to arrive. 1 is
    the paper's rule; more where a link takes longer than a step (:mod:`gruppetto.protocol.flight`)."""
    min_quorum: int = 1
    """K: the smallest number of learners that may close a round."""
    rounds: int | None = None
    """T, the last round; None for a run without an end."""
    grace: bool = True
    """The adaptive grace window. K = 1 without it is known to harm quality."""
    grace_factor: float = 0.8
    """γ: the share of the predicted slack that a round may spend waiting for more answers."""
    ema_factor: float = 0.1
    """Weight of the newest sample in the moving averages of the measured durations."""
    when_short: Literal["wait", "degrade"] = "wait"
    """With fewer than K learners alive: wait with an alarm, or go on with those alive."""
    stale: Literal["reject", "accept"] = "reject"
    """A contribution whose base is not the current version: reject it, or accept it up to H rounds late."""
    snapshot_window: int = 2
    """W: the fragments of this many coming rounds are copied at every boundary. 0: answer at the next boundary."""
    apply: ApplyMode = ApplyMode.OVERWRITE
    """What a learner does with a fragment that arrives: ``overwrite`` as in the paper, ``blend``, or ``carry``."""
    blend_alpha: float = 0.5
    """α of ``apply = "blend"``: the share that stays local."""
    norm_gate: Literal["clip", "reject", "off"] = "clip"
    """A contribution far longer than what learners lately offered: fold it with a usual norm, refuse it (never those of
    a majority, and never so that a quorum is missed: these are clipped), or take it as it is."""
    norm_factor: float = 10.0
    """How many times the usual norm of a tensor is far longer."""
    weight_cap: float | None = 8.0
    """A contribution counts at most so many times as much as a usual one; None: whatever its tokens say."""
    liveness_s: float = 10.0
    """A learner without a heartbeat for this long is not live. The one time-out; all else is measured."""
    start_learners: int | None = None
    """Training begins when this many are ready; None: the quorum is enough."""
    start_timeout_s: float = 60.0
    """... or when the first has been ready for this long and the quorum is there."""
    durability: Literal["round", "interval"] = "round"
    """``round``: every round is durable before it is published, and a dead syncer loses none. ``interval``: only every
    ``durability_rounds``-th is, and a dead syncer may lose the rounds since."""
    durability_rounds: int = 24
    """Rounds from one commit to the next under ``durability = "interval"``; one fewer may be lost."""
    checkpoint_timeout_s: float = 600.0
    """A checkpoint of the whole run waits so long for its parts; who has not answered by then is left out."""
    departed_named: int = 1024
    """The token ledger names so many of the learners that have left; those that left before are one sum."""
    num_slots: int | None = None
    """Data slots, leased to learners; None: twice the learners expected, 16 at least. Spare ones serve late joiners."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not field.name.startswith("_"):
                self._check_kind(field.name)
        Schedule(num_fragments=self.num_fragments, sync_period=self.sync_period)
        self._check_counts()
        self._check_shares_and_seconds()
        self._check_what_goes_together()

    def _check_counts(self) -> None:
        for name in (
            "num_learners",
            "min_quorum",
            "rounds",
            "start_learners",
            "num_slots",
            "durability_rounds",
            "rounds_in_flight",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} is {value}", where=f"run.{name}", fix="use 1 or more")
        for name in ("overlap_steps", "snapshot_window", "departed_named"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} is {getattr(self, name)}", where=f"run.{name}", fix="use 0 or more")
        for name, most in (
            ("rounds", MAX_ROUNDS),
            ("num_learners", MAX_LEARNERS),
            ("num_fragments", MAX_FRAGMENTS),
            ("sync_period", MAX_SYNC_PERIOD),
            ("snapshot_window", MAX_WINDOW),
            ("num_slots", 1_000_000),
            ("durability_rounds", 1_000_000),
            ("departed_named", 1_000_000),
            ("rounds_in_flight", MAX_IN_FLIGHT),
        ):
            value = getattr(self, name)
            if value is not None and value > most:
                raise SettingError(f"{name} is {value}", where=f"run.{name}", fix=f"use at most {most}")

    def _check_shares_and_seconds(self) -> None:
        for name, low, high in (
            ("grace_factor", 0.0, 1.0),
            ("ema_factor", 0.0, 1.0),
            ("blend_alpha", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise SettingError(
                    f"{name} is {getattr(self, name)}", where=f"run.{name}", fix=f"use a value from {low:g} to {high:g}"
                )
        if self.ema_factor == 0.0:
            raise SettingError(
                "ema_factor is 0", where="run.ema_factor", fix="use more than 0, or nothing is ever measured"
            )
        for name in ("norm_factor", "weight_cap"):
            value = getattr(self, name)
            if value is not None and value < LEAST_EXCESS:
                raise SettingError(
                    f"{name} is {value}",
                    where=f"run.{name}",
                    fix=f"use {LEAST_EXCESS:g} or more: half of all honest contributions are above the usual one",
                )
        for name in ("liveness_s", "start_timeout_s", "checkpoint_timeout_s"):
            if not 0 < (value := getattr(self, name)) <= MAX_SECONDS:
                raise SettingError(
                    f"{name} is {value}",
                    where=f"run.{name}",
                    fix=f"use more than 0 seconds, {MAX_SECONDS:g} at most",
                )
        if self.liveness_s < LEAST_LIVENESS_S:
            raise SettingError(
                f"liveness_s is {self.liveness_s}",
                where="run.liveness_s",
                fix=f"use {LEAST_LIVENESS_S:g} seconds or more, or nobody is ever heard in time",
            )

    def _check_what_goes_together(self) -> None:
        if self.min_quorum > self.num_learners:
            raise SettingError(
                f"min_quorum is {self.min_quorum} but num_learners is {self.num_learners}",
                where="run.min_quorum",
                fix=f"use {self.num_learners} or less, or add learners",
            )
        if self.start_learners is not None and self.start_learners > self.num_learners:
            raise SettingError(
                f"start_learners is {self.start_learners} but num_learners is {self.num_learners}",
                where="run.start_learners",
                fix=f"use {self.num_learners} or less",
            )
        if self.slots < self.num_learners:
            raise SettingError(
                f"num_slots is {self.slots} but num_learners is {self.num_learners}",
                where="run.num_slots",
                fix=f"use {self.num_learners} or more: every learner needs a data slot of its own",
            )
        if self.sync_period > 1 and self.overlap_steps >= self.sync_period:
            raise SettingError(
                f"overlap_steps is {self.overlap_steps} but sync_period is {self.sync_period}",
                where="run.overlap_steps",
                fix="use less than sync_period, or each fragment is due again before it has arrived",
            )
        if self.rounds_in_flight > self.sync_period:
            raise SettingError(
                f"rounds_in_flight is {self.rounds_in_flight} but sync_period is {self.sync_period}",
                where="run.rounds_in_flight",
                fix="use sync_period or less, or a fragment is due again while its last round is still open",
            )

    def _check_kind(self, name: str) -> None:
        value = getattr(self, name)
        where = f"run.{name}"
        match name:
            case "when_short" | "stale" | "apply" | "norm_gate" | "durability":
                allowed = {
                    "when_short": ("wait", "degrade"),
                    "stale": ("reject", "accept"),
                    "apply": tuple(ApplyMode),
                    "norm_gate": ("clip", "reject", "off"),
                    "durability": ("round", "interval"),
                }[name]
                if value not in allowed:
                    raise SettingError(f"{name} is {value!r}", where=where, fix="use one of " + ", ".join(allowed))
                if name == "apply":
                    object.__setattr__(self, "apply", ApplyMode(value))
            case "grace":
                if not isinstance(value, bool):
                    raise SettingError(f"{name} is {value!r}", where=where, fix="use true or false")
            case "weight_cap" if value is None:
                pass
            case (
                "grace_factor"
                | "ema_factor"
                | "blend_alpha"
                | "norm_factor"
                | "weight_cap"
                | "liveness_s"
                | "start_timeout_s"
                | "checkpoint_timeout_s"
            ):
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise SettingError(f"{name} is {value!r}", where=where, fix="use a finite number")
            case "rounds" | "start_learners" | "num_slots" if value is None:
                pass
            case _:
                if isinstance(value, bool) or not isinstance(value, int):
                    raise SettingError(f"{name} is {value!r}", where=where, fix="use a whole number")

    @property
    def schedule(self) -> Schedule:
        return Schedule(num_fragments=self.num_fragments, sync_period=self.sync_period)

    @property
    def slots(self) -> int:
        """The number of data slots, resolved."""
        return self.num_slots if self.num_slots is not None else max(16, 2 * self.num_learners)

    @property
    def reserve(self) -> int:
        """Rounds that may be published between two commits."""
        return self.durability_rounds - 1 if self.durability == "interval" else 0

    @property
    def notice(self) -> str:
        """What somebody should know who runs with these, in one line; mostly ""."""
        return overwriting_notice(self.apply, sync_period=self.sync_period, overlap_steps=self.overlap_steps)

    @property
    def to_begin(self) -> int:
        """Ready learners that let training begin at once."""
        return max(self.min_quorum, self.start_learners or 0)
