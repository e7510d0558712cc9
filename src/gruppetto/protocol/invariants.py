"""What must always hold, by name.

Observers serve tests, the fuzzer and ``replay``: they watch a syncer, they never steer it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gruppetto.protocol.actions import Fold, Persist, Publish, RoundClosed, Send, SyncerAction, TakeOuterStep
from gruppetto.protocol.events import Persisted, SyncerEvent
from gruppetto.protocol.messages import Ask
from gruppetto.protocol.quorum import effective_quorum
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, LearnerId, Round, Version

__all__ = ["INVARIANTS", "BrokenInvariantError", "Observer"]

INVARIANTS = {
    "versions-only-grow": "the version of a fragment never falls, and never passes the newest closed round",
    "persist-before-publish": "nothing is published that is not durable",
    "merged-once": "a contribution is folded at most once per learner, fragment and round",
    "no-commit-below-quorum": "a round with fragments due never closes with fewer participants than its quorum",
    "one-round-at-a-time": "rounds close in order, none is skipped and none is used twice in one epoch",
    "weights-are-positive": "what is folded has a positive, finite weight",
    "ledger-balances": "consumed · P = merged + discarded + lost + open, exactly",
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

    Call :meth:`saw` after every ``step``; it raises :class:`BrokenInvariantError`.
    """

    def __init__(self) -> None:
        self._durable: tuple[Version, ...] = ()
        self._pending: dict[Round, tuple[Version, ...]] = {}
        self._folded: set[tuple[int, Round, Fragment, LearnerId]] = set()
        self._closed: dict[int, Round] = {}
        self._versions: tuple[Version, ...] = ()

    def saw(self, core: SyncerCore, event: SyncerEvent, actions: Iterable[SyncerAction]) -> None:
        """Judge one step of ``core``."""
        if isinstance(event, Persisted) and event.round in self._pending:
            self._durable = self._pending.pop(event.round)
        for action in actions:
            self._judge(core, action)
        self._judge_state(core)

    def _judge(self, core: SyncerCore, action: SyncerAction) -> None:
        match action:
            case Persist():
                self._pending[action.round] = action.state.versions
            case Publish():
                for fragment, version in action.message.versions:
                    if fragment >= len(self._durable) or self._durable[fragment] != version:
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
            case Send(message=Ask() as ask) if ask.epoch != core.epoch:
                raise BrokenInvariantError("own-epoch", f"{ask}")
            case _:
                pass

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

    def _judge_state(self, core: SyncerCore) -> None:
        for old, new in zip(self._versions, core.published, strict=False):
            if new < old or new > core.round:
                raise BrokenInvariantError("versions-only-grow", f"{old} → {new} at round {core.round}")
        self._versions = core.published
        if not core.ledger.balances():
            raise BrokenInvariantError("ledger-balances", f"{core.ledger.totals}, consumed {core.ledger.consumed}")
