"""What must always hold, by name.

Observers serve tests, the fuzzer and ``replay``: they watch a syncer, they never steer it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gruppetto.protocol.actions import (
    Alarm,
    AlarmKind,
    AlarmOver,
    Fold,
    Persist,
    Publish,
    RoundClosed,
    Send,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.alarm_table import ALARMS, LOSS_NATS, ROOM_AGAIN, SKEW_S, SKEWED_NO_MORE_S
from gruppetto.protocol.events import LookedAround, Persisted, SyncerEvent
from gruppetto.protocol.habits import MARKS, Habits
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Ask, Marker
from gruppetto.protocol.quorum import effective_quorum
from gruppetto.protocol.round import Phase
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, LearnerId, Round, Version

__all__ = ["INVARIANTS", "BrokenInvariantError", "Observer"]

INVARIANTS = {
    "versions-only-grow": "the version of a fragment never falls, and never passes the newest closed round",
    "persist-before-publish": "nothing is published that is not durable, or beyond what the last commit allows",
    "merged-once": "a contribution is folded at most once per learner, fragment and round",
    "no-commit-below-quorum": "a round with fragments due never closes with fewer participants than its quorum",
    "riders-come-first": "no round closes on what came ahead of it alone while a live learner has still to answer, or "
    "none lives",
    "asks-when-it-may": "a round asks in the step in which its quorum is at hand",
    "closes-when-it-may": "a round with a quorum of answers closes in the step in which nobody is to come any more, or "
    "the fleet has moved on; and it goes on to its merge in the step in which the last contribution is folded",
    "one-round-at-a-time": "rounds close in order, none is skipped and none is used twice in one epoch",
    "apart-in-flight": "at most D consecutive rounds are open, and have no fragment in common; "
    "only the first of them closes, and only the last has not asked",
    "weights-are-positive": "what is folded has a positive, finite weight",
    "ledger-balances": "consumed · P = merged + promised + discarded + lost + open, exactly",
    "names-add-up": "what the learners have consumed by name, and those who left long ago together, is all of it",
    "alarms-hold": "an alarm is said once for as long as it holds, and withdrawn when it does not",
    "own-epoch": "every request carries the epoch of the syncer that makes it",
}
"""Name and meaning of every invariant."""


class BrokenInvariantError(AssertionError):
    """An invariant does not hold. ``name`` is a key of :data:`INVARIANTS`."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what} ({INVARIANTS[name]})")


class Observer:
    """Watches one syncer over its lives.

    Call :meth:`saw` after every ``step``; it raises :class:`BrokenInvariantError`. ``versions`` are those that
    have been published when the watch begins.
    """

    def __init__(self, versions: tuple[Version, ...] = ()) -> None:
        self._before = versions
        self._durable: dict[int, SyncerState] = {}
        """By epoch: the last commit."""
        self._pending: dict[tuple[int, Round], SyncerState] = {}
        self._folded: set[tuple[int, Round, Fragment, LearnerId]] = set()
        self._closed: dict[int, Round] = {}
        self._closing: tuple[int, Round] | None = None
        self._versions: dict[int, tuple[Version, ...]] = {}
        """By epoch: the newest version of each fragment that it, or an earlier one when it began, has published."""
        self._alarms: dict[int, set[AlarmKind]] = {}
        """By epoch: those that hold."""
        self._missed: dict[int, dict[LearnerId, int]] = {}
        """By epoch: in how many rounds, one after the other, a live learner had no part."""
        self._habits: dict[int, Habits] = {}
        self._losses: dict[int, tuple[float, float]] = {}
        """By epoch: the lowest and the highest loss that anybody has reported."""

    def begins(self, epoch: int) -> None:
        """A core begins in this life. It need not be the first of it: while nobody has seeded, one may be made anew,
        which remembers nothing of what the one before was told."""
        self._alarms.pop(epoch, None)
        self._missed.pop(epoch, None)
        self._habits.pop(epoch, None)
        self._losses.pop(epoch, None)

    def saw(self, core: SyncerCore, event: SyncerEvent, actions: Iterable[SyncerAction]) -> None:
        """Judge one step of ``core``."""
        actions = list(actions)
        if isinstance(event, Persisted) and (core.epoch, event.round) in self._pending:
            self._durable[core.epoch] = self._pending.pop((core.epoch, event.round))
        for action in actions:
            self._judge(core, action)
        if isinstance(event, LookedAround):
            self._judge_what_was_seen(core, event)
        for action in actions:
            if isinstance(action, RoundClosed) and core.schedule.due(action.round):
                self._judge_who_is_left_out(core, action)
        self._judge_habits(core, event, actions)
        self._judge_state(core)

    def _judge(self, core: SyncerCore, action: SyncerAction) -> None:
        match action:
            case Persist():
                self._pending[core.epoch, action.round] = action.state
            case Publish():
                commit = self._durable.get(core.epoch)
                for fragment, version in action.message.versions:
                    durable = commit is not None and commit.versions[fragment] == version
                    allowed = commit is not None and commit.round < version <= commit.round + commit.reserve
                    if not (durable or allowed):
                        raise BrokenInvariantError("persist-before-publish", f"fragment {fragment} version {version}")
            case Fold():
                key = (core.epoch, action.round, action.fragment, action.learner)
                if key in self._folded:
                    raise BrokenInvariantError("merged-once", f"{key}")
                self._folded.add(key)
                if not 0.0 < action.weight < float("inf"):
                    raise BrokenInvariantError("weights-are-positive", f"{action}")
            case RoundClosed():
                self._judge_closing(core, action)
            case TakeOuterStep():
                # Folds of closed rounds need not be remembered: a late answer is refused by its round number.
                self._folded = {key for key in self._folded if key[1] >= action.round}
            case Alarm() | AlarmOver():
                self._judge_alarm(core, action)
            case Send(message=Ask() | Marker() as said) if said.epoch != core.epoch:
                raise BrokenInvariantError("own-epoch", f"{said}")
            case _:
                pass

    def _judge_alarm(self, core: SyncerCore, action: Alarm | AlarmOver) -> None:
        holding, kind = self._alarms.setdefault(core.epoch, set()), action.kind
        # The alarm of direction names learners; one more is news.
        if (kind in holding) is isinstance(action, Alarm) and kind is not AlarmKind.DIRECTION:
            raise BrokenInvariantError("alarms-hold", f"{action} while {sorted(holding)} hold")
        if isinstance(action, AlarmOver):
            holding.discard(kind)
        elif ALARMS[kind].lasts:
            holding.add(kind)

    def _judge_what_was_seen(self, core: SyncerCore, seen: LookedAround) -> None:
        """Beyond both marks of an alarm there is no choice."""
        holding = self._alarms.get(core.epoch, set())
        live = {member.learner for member in core.members.live()}
        skew = max((abs(skew) for name, skew in seen.skews_s if name in live), default=0.0)
        facts = [
            (AlarmKind.CLOCK_SKEW, skew > SKEW_S, skew <= SKEWED_NO_MORE_S),
            (AlarmKind.DIVERGES, *self._judge_the_losses(core, [loss for name, loss in seen.losses if name in live])),
        ]
        if seen.free_bytes is not None:
            enough = seen.free_bytes >= ROOM_AGAIN * seen.wanted_bytes
            facts.append((AlarmKind.DISK_FILLING, seen.free_bytes < seen.wanted_bytes, enough))
        for kind, must, must_not in facts:
            if (must and kind not in holding) or (must_not and kind in holding):
                raise BrokenInvariantError("alarms-hold", f"{kind.value} after {seen}")

    def _judge_the_losses(self, core: SyncerCore, losses: list[float]) -> tuple[bool, bool]:
        """Whether the alarm has to hold, and whether it may not: none has risen while they all lie close together."""
        spoilt = not all(map(math.isfinite, losses))
        lowest, highest = self._losses.get(core.epoch, (math.inf, -math.inf))
        lowest = min([lowest, *filter(math.isfinite, losses)])
        highest = max([highest, *filter(math.isfinite, losses)])
        self._losses[core.epoch] = lowest, highest
        return spoilt, not spoilt and highest - lowest <= LOSS_NATS

    def _judge_habits(self, core: SyncerCore, event: SyncerEvent, actions: Iterable[SyncerAction]) -> None:
        habits = self._habits.setdefault(core.epoch, Habits())
        habits.saw(core, event, actions)
        holding = self._alarms.get(core.epoch, set()) & MARKS.keys()
        if holding != habits.hold:
            raise BrokenInvariantError("alarms-hold", f"{_names(holding)} hold, not {_names(habits.hold)}")

    def _judge_who_is_left_out(self, core: SyncerCore, closed: RoundClosed) -> None:
        before = self._missed.get(core.epoch, {})
        live = [member.learner for member in core.members.live()]
        missed = {name: 0 if name in closed.participants else before.get(name, 0) + 1 for name in live}
        self._missed[core.epoch] = missed
        must = max(missed.values(), default=0) >= max(32, core.setting.sync_period)
        if must is not (AlarmKind.LEFT_OUT in self._alarms.get(core.epoch, set())):
            raise BrokenInvariantError("alarms-hold", f"left-out after round {closed.round}: {missed}")

    def _judge_alarms(self, core: SyncerCore) -> None:
        holding, live = self._alarms.get(core.epoch, set()), len(core.members.live())
        if AlarmKind.QUORUM_SHORT in holding and core.phase in (Phase.QUORUM, Phase.GRACE):
            degrade = core.setting.when_short == "degrade"
            quorum = effective_quorum(min_quorum=core.setting.min_quorum, live=live, degrade=degrade)
            opened = core.open_round
            if live >= quorum and opened is not None and opened.closing is None:
                raise BrokenInvariantError("alarms-hold", f"{live} live learners are short of {quorum}")
        if AlarmKind.PERSIST_FAILED in holding and core.phase is not Phase.PERSISTING:
            raise BrokenInvariantError("alarms-hold", f"a persist has failed in phase {core.phase.value}")

    def _judge_closing(self, core: SyncerCore, closed: RoundClosed) -> None:
        before = self._closed.get(core.epoch)
        if before is not None and closed.round != before + 1:
            raise BrokenInvariantError("one-round-at-a-time", f"round {closed.round} closed after {before}")
        self._closed[core.epoch] = closed.round
        degrade = core.setting.when_short == "degrade"
        quorum = effective_quorum(min_quorum=core.setting.min_quorum, live=closed.live, degrade=degrade)
        if core.schedule.due(closed.round) and len(closed.participants) < quorum:
            raise BrokenInvariantError(
                "no-commit-below-quorum", f"round {closed.round} closed with {closed.participants}"
            )

    def _judge_verdict(self, core: SyncerCore) -> None:
        """Once, in the very step in which it is given."""
        opened = core.open_round
        if opened is None or opened.closing is None or self._closing == (core.epoch, opened.round):
            return
        self._closing = (core.epoch, opened.round)
        answered = {fragment for _, fragment in opened.admitted.keys() - opened.early}
        live = [m.learner for m in core.members.live()]
        to_come = [name for name in live if name in opened.asked and not opened.has_settled(name)]
        if not answered >= set(opened.due) and (to_come or not live):
            raise BrokenInvariantError("riders-come-first", f"round {opened.round}: {opened.closing.why}")

    def _judge_open(self, core: SyncerCore) -> None:
        """Whatever the core looked at in this step, or found that it need not look at."""
        opened, live = core.open_round, core.members.live()
        degrade = core.setting.when_short == "degrade"
        quorum = effective_quorum(min_quorum=core.setting.min_quorum, live=len(live), degrade=degrade)
        self._judge_flight(core, live, quorum)
        if opened is None or core.phase not in (Phase.QUORUM, Phase.GRACE):
            return
        if core.phase is Phase.QUORUM:
            if sum(m.clock >= opened.round for m in live) >= quorum:
                raise BrokenInvariantError("asks-when-it-may", f"round {opened.round} has not asked")
            return
        if opened.closing is not None:
            if not opened.folding:
                raise BrokenInvariantError("closes-when-it-may", f"round {opened.round} has all it waits for")
            return
        over = not core.setting.grace or not opened.waited_for(live) or opened.moved_on(live) >= quorum
        if opened.answers_that_count(live) >= quorum and over:
            raise BrokenInvariantError("closes-when-it-may", f"round {opened.round} is still open")

    def _judge_flight(self, core: SyncerCore, live: Sequence[Member], quorum: int) -> None:
        rounds, due = [o.round for o in core.open_rounds], [p for o in core.open_rounds for p in o.due]
        consecutive = not rounds or rounds == list(range(rounds[0], rounds[0] + len(rounds)))
        others_take = all(o.closing is None for o in core.open_rounds[1:])
        others_ask = all(o.asked_at is not None for o in core.open_rounds[:-1])
        few = len(rounds) <= core.setting.rounds_in_flight and len(set(due)) == len(due)
        if not (consecutive and others_take and others_ask and few):
            raise BrokenInvariantError("apart-in-flight", f"{rounds} with {due} after round {core.round}")
        last = core.open_rounds[-1] if len(rounds) > 1 else None
        if last is not None and last.asked_at is None and sum(m.clock >= last.round for m in live) >= quorum:
            raise BrokenInvariantError("asks-when-it-may", f"round {last.round} has not asked")

    def _judge_state(self, core: SyncerCore) -> None:
        self._judge_verdict(core)
        self._judge_alarms(core)
        self._judge_open(core)
        if core.epoch not in self._versions:
            self._versions[core.epoch] = self._newest_of_all()
        before = self._versions[core.epoch]
        for p, (old, new) in enumerate(zip(before, core.published, strict=False)):
            if (new < old and p not in core.republishing) or new > core.round:
                raise BrokenInvariantError("versions-only-grow", f"{old} → {new} at round {core.round}")
        if core.published:
            old_and_new = zip(before or core.published, core.published, strict=True)
            self._versions[core.epoch] = tuple(map(max, old_and_new))
        if not core.ledger.balances() or sum(core.ledger.merged_in) != core.ledger.totals.merged:
            raise BrokenInvariantError("ledger-balances", f"{core.ledger.totals}, consumed {core.ledger.consumed}")
        if not core.ledger.names_add_up():
            raise BrokenInvariantError("names-add-up", f"{core.ledger.consumed_by}, {core.ledger.departed}")

    def _newest_of_all(self) -> tuple[Version, ...]:
        """What learners may have seen of each fragment by now."""
        lives = [versions for versions in (self._before, *self._versions.values()) if versions]
        return tuple(max(of_fragment) for of_fragment in zip(*lives, strict=True))


def _names(kinds: Iterable[AlarmKind]) -> list[str]:
    return sorted(kind.value for kind in kinds)
