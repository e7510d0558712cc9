"""What happens in one fuzzed world: who lives in it, how slow everything is, and what goes wrong when.

A plan is all there is to know: the same plan gives the same history, to the last event. It is plain JSON on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from gruppetto.errors import DataError
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Round
from gruppetto.sim import Link, Pace, SyncerCosts

__all__ = ["LONGEST_PAUSE_S", "SYNCER", "Fault", "FaultKind", "LearnerPlan", "Plan", "read_plan", "write_plan"]

SYNCER = "syncer"
"""Whom a fault hits when it hits no learner."""
LONGEST_PAUSE_S = 2.0
"""Between two attempts of a learner to connect."""


class FaultKind(StrEnum):
    """What can go wrong. ``lasts_s`` and ``how`` of a :class:`Fault` mean what stands here."""

    CRASH_SYNCER = "crash-syncer"
    """kill −9. It is started again after ``lasts_s``. ``how``: at which action, see :data:`CRASH_POINTS`."""
    POWER_LOSS = "power-loss"
    """The same, but no connection is closed: learners find out by silence."""
    STOP_SYNCER = "stop-syncer"
    """SIGTERM: it makes a last commit and goes. It is started again after ``lasts_s``."""
    PERSIST_FAILS = "persist-fails"
    """The disk refuses commits for ``lasts_s``."""
    SLOW_SYNCER = "slow-syncer"
    """Folds, outer steps, commits and publications take ten times as long for ``lasts_s``."""
    DAMAGE = "damage"
    """kill −9, and a fragment of the newest commit cannot be read at the next start, ``lasts_s`` later. ``how`` =
    "twice": nor can the value before."""
    LOST_STATE = "lost-state"
    """kill −9, and the newest commit cannot be read at the next start, ``lasts_s`` later. ``how`` = "snapshot": nor can
    any down to the newest snapshot."""
    TAKE_OVER = "take-over"
    """A standby takes over while the syncer lives on for ``lasts_s``. ``how`` = "mid-commit": in the middle of its next
    commit, which lands and is published all the same, as if the syncer had been stopped behind each of its checks."""
    DIVERGE = "diverge"
    """The next outer step gives a fragment that is not finite."""
    KILL = "kill"
    """kill −9 of a learner, started again after ``lasts_s``. ``how``: see :data:`RETURNS`."""
    PAUSE = "pause"
    """SIGSTOP for ``lasts_s``, then SIGCONT."""
    DOUBLE = "double"
    """A second process starts under the same name while the first one lives."""
    LEAVE = "leave"
    """It says goodbye, and comes back as a new process after ``lasts_s``. ``how``: see :data:`LEAVES`."""
    CUT = "cut"
    """All connections of a learner break; what is on its way is lost."""
    HALF_OPEN = "half-open"
    """The control connection swallows everything and nobody is told. ``how``: "up", "down" or "" for both ways."""
    PARTITION = "partition"
    """Nothing passes between a learner and the syncer for ``lasts_s``. ``how`` = "holds": what was said is held back
    on the way and arrives late; otherwise it waits at the sender and is coalesced."""
    STORM = "storm"
    """For ``lasts_s`` bodies of a learner are late, lost, or arrive twice."""
    NOT_FINITE = "not-finite"
    """For ``lasts_s`` every contribution of a learner holds NaN."""
    REPLAY = "replay"
    """Contributions sent before, of whatever life, arrive once more."""
    GHOST = "ghost"
    """Messages of an earlier epoch or incarnation arrive once more, both ways."""
    HUGE = "huge"
    """For ``lasts_s`` every contribution of a learner is a thousand times too long."""
    BACKWARD = "backward"
    """For ``lasts_s`` every contribution of a learner points against the momentum."""
    CHECKPOINT = "checkpoint"
    """An operator asks for a checkpoint of the whole run."""
    RESUME_ALL = "resume-all"
    """Everything dies, and the whole world goes on from its newest checkpoint; the syncer after ``lasts_s``."""


CRASH_POINTS = ("", "Send", "Fold", "TakeOuterStep", "Persist", "Persist+", "Publish", "Publish+", "Published")
"""At once; before the next action of this name; durable but not yet told; with half of the learners told."""
DAMAGES = {
    "damage": ("", "twice"),
    "lost-state": ("", "snapshot"),
    "take-over": ("", "mid-commit", "mid-commit"),
}
"""How each fault of the durable state may go."""
RETURNS = ("", "checkpoint", "silent", "renamed")
"""As a fresh process; from its newest checkpoint; after a death that closed no connection; under another name. Besides,
where there are checkpoints of the whole run: "part", from its part of the newest, as if the run had been resumed."""

LEAVES = ("", "notice", "storm")
"""At once; on notice, with all its work given ahead of its rounds; the same, while its bodies are late, lost or come
twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float
    kind: FaultKind
    who: str = SYNCER
    lasts_s: float = 0.0
    how: str = ""

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:g} s" if self.lasts_s else ""
        return f"{self.at_s:7.3f} s  {self.kind.value}{' ' + self.how if self.how else ''} {self.who}{lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlan:
    """A learner that lives until something goes wrong."""

    name: str
    pace: Pace
    link: Link
    tokens_per_step: int
    joins_at_s: float = 0.0
    checkpoint_every: int = 5
    """Steps between two checkpoints."""
    recovers: bool = True
    """A fresh process looks for a state to begin from: at donors, then in its own last checkpoint."""
    donates: bool = True
    """It gives its state to others."""
    chunk_s: float = 0.05
    """How long each part of a donated state takes at the donor."""
    max_run_ahead: int | None = None
    """It waits when more than so many steps past the newest round; not for long, until the world is calm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole world. Until ``calm_at_s`` anything may fail; then everything is mended, and progress must resume."""

    seed: int
    setting: ProtocolSetting
    learners: tuple[LearnerPlan, ...]
    costs: SyncerCosts
    calm_at_s: float
    ping_s: float
    """A connection on which nothing has passed for so long is given up by both ends."""
    goodbye_s: float
    """How long the syncer of a finished run waits for goodbyes."""
    faults: tuple[Fault, ...] = field(default=())
    offsets: tuple[int, ...] = ()
    """The syncer is a shard, whose fragments are due when they would be for a syncer of more; empty: it is the only
    one."""
    goes_on_elsewhere: bool = False
    """Other shards of its run finish when the world is calm, and not before."""

    @property
    def schedule(self) -> Schedule:
        """When each fragment is due."""
        return replace(self.setting.schedule, offsets=self.offsets)

    @property
    def settle_s(self) -> float:
        """How long after ``calm_at_s`` everything must be well again.

        Every silence is noticed once (lease and ping), everybody has dialled once more, the run has begun again, and
        each fragment has come round twice at the pace of the slowest learner, which K = M allows.
        """
        setting, costs = self.setting, self.costs
        slowest_s = max(learner.pace.step_s * (1 + learner.pace.jitter) for learner in self.learners)
        latency_s = max(learner.link.latency_s for learner in self.learners)
        at_once = max(len(self.schedule.due(Round(t))) for t in range(setting.sync_period))
        folds = len(self.learners) * at_once
        round_s = 2 * slowest_s + 12 * latency_s + 3 * (folds * costs.fold_s + costs.merge_s + costs.persist_s)
        noticed_s = 2 * (setting.liveness_s + self.ping_s + LONGEST_PAUSE_S) + setting.start_timeout_s
        return noticed_s + (2 * setting.sync_period + 6) * (round_s + 3 * costs.publish_s)

    def __str__(self) -> str:
        s = self.setting
        lines = [
            f"seed {self.seed}: M={len(self.learners)} P={s.num_fragments} H={s.sync_period} K={s.min_quorum} "
            f"τ={s.overlap_steps} W={s.snapshot_window} grace={'on' if s.grace else 'off'} apply={s.apply.value} "
            f"when_short={s.when_short} stale={s.stale} T={s.rounds} liveness={s.liveness_s:g} s"
            + (f" durable every {s.durability_rounds} rounds" if s.reserve else "")
            + (f" due at {self.offsets}" if self.offsets else "")
            + (" goes on elsewhere" if self.goes_on_elsewhere else "")
            + (f" D={s.rounds_in_flight}" if s.rounds_in_flight > 1 else ""),
        ]
        lines += [
            f"  {a.name}: step {a.pace.step_s:g} s ± {a.pace.jitter:.0%}, latency {a.link.latency_s:g} s"
            + (f", joins at {a.joins_at_s:g} s" if a.joins_at_s else "")
            for a in self.learners
        ]
        return "\n".join([*lines, *(f"  {fault}" for fault in self.faults), f"  {self.calm_at_s:7.3f} s  calm"])


def write_plan(plan: Plan, path: Path) -> None:
    """As indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")


def read_plan(path: Path) -> Plan:
    """The plan in a file that :func:`write_plan` wrote. Raises :class:`DataError`."""
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise DataError("cannot be read (it is not a regular file)", where=str(path), fix="name a plan of the fuzzer")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as wrong:
        raise DataError(
            f"cannot be read ({wrong.strerror})", where=str(path), fix="name a plan of the fuzzer"
        ) from wrong
    except (msgspec.DecodeError, ValueError) as wrong:
        fix = "name one that gruppetto fuzz has written"
        raise DataError(f"is no plan of the fuzzer ({wrong})", where=str(path), fix=fix) from wrong
