"""What people and tools see of a running syncer: one dictionary, plain enough for JSON."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gruppetto.numerics.deal import WHOLE
from gruppetto.protocol.actions import (
    Alarm,
    AlarmKind,
    AlarmOver,
    Drop,
    MemberChanged,
    QuorumMet,
    RoundClosed,
    SyncerAction,
)
from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import RejectionReason
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import LearnerId, Round
from gruppetto.runtime.wire import RecoveryNote

__all__ = ["RECENT_ROUNDS", "UNKNOWN_LEARNER", "Observer", "status_before_the_first_learner", "status_of"]

UNKNOWN_LEARNER: Mapping[str, Any] = MappingProxyType(
    {
        "state": None,
        "why": "",
        "last_rejection": None,
        "clock": 0,
        "step_s": None,
        "steps": 0,
        "tokens": None,
        "merged_fragment_tokens": None,
        "last_merged_round": None,
        "merged_rounds": None,
        "slot": None,
        "incarnation": None,
        "began_from": None,
        "norm": None,
        "cosine": None,
        "metrics": {},
    }
)
"""What a status says of a learner that the syncer has not met, or of which nothing is left."""
RECENT_ROUNDS = 5
"""A learner takes part if it was merged in one of so many last rounds."""
ALARMS_KEPT = 20
ALARMS_RECENT_S = 600.0
"""An alarm that is over is shown for so long."""
RECOVERIES_KEPT = 20


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Bytes of tensors and frames since this process began."""

    up: int = 0
    """From the learners."""
    down: int = 0


@dataclass(slots=True, kw_only=True)
class SeenAlarm:
    """An alarm, and how long it held."""

    at: float
    alarm: Alarm
    over_at: float | None = None
    """None while it holds."""


@dataclass(slots=True, kw_only=True)
class Observer:
    """Remembers what the core decided, as far as somebody may want to see it. Decides nothing."""

    traffic: Traffic = field(default_factory=Traffic)
    malformed: int = 0
    """Messages and bodies that were refused before the core heard of them."""
    last_merged: dict[LearnerId, Round] = field(default_factory=dict)
    merged_rounds: dict[LearnerId, int] = field(default_factory=dict)
    metrics: dict[LearnerId, dict[str, float]] = field(default_factory=dict)
    why: dict[LearnerId, str] = field(default_factory=dict)
    """What made the state of each change last."""
    rejections: dict[LearnerId, tuple[Round, str]] = field(default_factory=dict)
    """The newest contribution of each that was not merged, and the reason."""
    holding: dict[AlarmKind, SeenAlarm] = field(default_factory=dict)
    alarms_over: deque[SeenAlarm] = field(default_factory=lambda: deque(maxlen=ALARMS_KEPT))
    began_from: dict[LearnerId, str] = field(default_factory=dict)
    recoveries: deque[tuple[float, LearnerId, RecoveryNote]] = field(
        default_factory=lambda: deque(maxlen=RECOVERIES_KEPT)
    )
    quorum: QuorumMet | None = None
    closed: RoundClosed | None = None

    def recovered(self, now: float, learner: LearnerId, note: RecoveryNote) -> None:
        """A learner that began in mid-run says where its state came from."""
        self.recoveries.append((now, learner, note))
        self.began_from[learner] = f"{note.source} {note.donor}".strip()

    def saw(self, now: float, action: SyncerAction) -> None:
        """Take note of an action."""
        match action:
            case QuorumMet():
                self.quorum = action
            case RoundClosed():
                self.closed = action
                for learner in action.participants:
                    self.last_merged[learner] = action.round
                    self.merged_rounds[learner] = self.merged_rounds.get(learner, 0) + 1
            case MemberChanged():
                self.why[action.learner] = action.why
            case Drop() if action.reason is not RejectionReason.UNKNOWN_LEARNER:
                self.rejections[action.learner] = action.round, action.reason.value
            case Alarm(kind=kind):
                before = self.holding.get(kind)
                # Said anew while it holds, it has news; it holds since it was first said.
                seen = SeenAlarm(at=now if before is None else before.at, alarm=action)
                if ALARMS[kind].lasts:
                    self.holding[kind] = seen
                else:
                    seen.over_at = now
                    self.alarms_over.append(seen)
            case AlarmOver(kind=kind):
                if (over := self.holding.pop(kind, None)) is not None:
                    over.over_at = now
                    self.alarms_over.append(over)
            case _:
                pass

    def alarms(self, now: float) -> list[SeenAlarm]:
        """Those that hold, and those of the last minutes, as they were said."""
        recent = [seen for seen in self.alarms_over if seen.over_at is None or now - seen.over_at <= ALARMS_RECENT_S]
        return sorted([*recent, *self.holding.values()], key=lambda seen: seen.at)


def status_of(core: SyncerCore, seen: Observer, now: float) -> dict[str, Any]:
    """Where the run stands. Times are in seconds since this syncer began; a share or time not known yet is None."""
    live = [m.learner for m in core.members.live()]
    recently = core.round - RECENT_ROUNDS
    taking_part = [name for name in live if seen.last_merged.get(name, -1) > recently]
    return {
        "run_id": core.run_id,
        "epoch": core.epoch,
        "round": core.published_round,
        "rounds": core.setting.rounds,
        "phase": core.phase.value,
        "waiting_for": core.waiting_for,
        "uptime_s": now,
        "layout_hash": core.layout_hash,
        "num_fragments": core.setting.num_fragments,
        "sync_period": core.setting.sync_period,
        "min_quorum": core.setting.min_quorum,
        "live": len(live),
        "taking_part": len(taking_part),
        "learners": {m.learner: _learner(core, seen, m) for m in core.members},
        "quorum": _quorum(core, seen),
        "grace": _grace(core, seen),
        "tokens": dict(core.ledger.in_tokens()),
        "fragment_tokens": {
            "merged": core.ledger.totals.merged,
            "discarded": core.ledger.totals.discarded,
            "lost": core.ledger.totals.lost,
            "promised": core.ledger.promised_total(),
            "open": core.ledger.open_total(),
            "discarded_by": dict(sorted(core.ledger.discarded_by.items())),
        },
        "rejected": _rejected(core, seen),
        "clipped": dict(sorted(core.clipped.items())),
        "bytes": {"up": seen.traffic.up, "down": seen.traffic.down},
        "recoveries": [
            {"t": t, "learner": learner, "source": note.source, "donor": note.donor, "seconds": note.seconds}
            for t, learner, note in seen.recoveries
        ],
        "alarms": [
            {"t": said.at, "kind": said.alarm.kind.value, "text": said.alarm.text, "over_t": said.over_at}
            for said in seen.alarms(now)
        ],
        "shard": WHOLE,
        "shards": {},
        "security": {},
    }


def status_before_the_first_learner(
    setting: ProtocolSetting, seen: Observer, *, run_id: str, epoch: int, now: float
) -> dict[str, Any]:
    """The same keys while nobody has said yet what the model looks like."""
    core = SyncerCore(setting, run_id=run_id, layout_hash="")
    return {**status_of(core, seen, now), "epoch": epoch}


def _learner(core: SyncerCore, seen: Observer, member: Member) -> dict[str, Any]:
    name = member.learner
    refused = seen.rejections.get(name)
    return {
        "state": member.phase.value,
        "why": seen.why.get(name, ""),
        "last_rejection": None if refused is None else {"round": refused[0], "reason": refused[1]},
        "clock": member.clock,
        "step_s": member.step_s,
        "steps": member.steps,
        "tokens": core.ledger.consumed_by.get(name, 0),
        "merged_fragment_tokens": core.ledger.merged_by.get(name, 0),
        "last_merged_round": seen.last_merged.get(name),
        "merged_rounds": seen.merged_rounds.get(name, 0),
        "slot": member.slot,
        "incarnation": member.incarnation,
        "began_from": seen.began_from.get(name),
        "norm": member.norm,
        "cosine": member.cosine,
        "metrics": finite(seen.metrics.get(name, {})),
    }


def _quorum(core: SyncerCore, seen: Observer) -> dict[str, Any]:
    opened, last = core.open_round, seen.quorum
    return {
        "open_round": opened.round if opened is not None else None,
        "answers": opened.answers() if opened is not None else 0,
        "last_s": last.quorum_s if last is not None else None,
        "mean_s": core.measured.quorum_s,
        "participants": list(seen.closed.participants) if seen.closed is not None else [],
        "closed_because": seen.closed.why if seen.closed is not None else "",
    }


def _grace(core: SyncerCore, seen: Observer) -> dict[str, Any]:
    return {
        "on": core.setting.grace,
        "window_s": seen.quorum.grace_s if seen.quorum is not None else None,
        "spent_s": seen.closed.grace_spent_s if seen.closed is not None else None,
        "sync_s": core.measured.sync_s,
    }


def _rejected(core: SyncerCore, seen: Observer) -> dict[str, int]:
    counts = dict(sorted(core.rejected.items()))
    if seen.malformed:
        counts["malformed"] = counts.get("malformed", 0) + seen.malformed
    return counts


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no word for NaN or infinity: None. What was never reported is not there at all."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
