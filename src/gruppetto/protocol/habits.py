"""What has been usual lately in one life of a syncer: a second, simpler account of the alarms that take many rounds.

For observers; the core's own is in :mod:`gruppetto.protocol.watches`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gruppetto.protocol.actions import AlarmKind, QuorumMet, RoundClosed, SyncerAction
from gruppetto.protocol.alarm_table import ALWAYS_SPENT, MOSTLY_SLOW, SELDOM_SLOW, SELDOM_SPENT
from gruppetto.protocol.events import Published, SyncerEvent
from gruppetto.protocol.quorum import effective_quorum
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Round
from gruppetto.protocol.watches import ENOUGH_ROUNDS

__all__ = ["MARKS", "Habits"]

HAIR_S = 1e-9
"""Of two ways to reckon the end of a grace window, one may see it so much earlier."""
MARKS = {
    AlarmKind.GRACE_SPENT: (ALWAYS_SPENT, SELDOM_SPENT),
    AlarmKind.SLOW_SYNCER: (MOSTLY_SLOW, SELDOM_SLOW),
}
"""Shares of the rounds lately: at the first an alarm is raised, below the second it is withdrawn."""


class Habits:
    """Follows one life; :attr:`hold` are those of its alarms that have to."""

    def __init__(self) -> None:
        self.hold: set[AlarmKind] = set()
        self._seen: dict[AlarmKind, list[bool]] = {kind: [] for kind in MARKS}
        """Of each round."""
        self._grace_s: dict[Round, float] = {}
        self._closed = self._published = Round(0)
        self._publications = 0

    def saw(self, core: SyncerCore, event: SyncerEvent, actions: Iterable[SyncerAction]) -> None:
        """Take note of one step."""
        if isinstance(event, Published) and event.round == self._closed == core.published_round > self._published:
            self._published = event.round
            self._saw_publication(core)
        for action in actions:
            match action:
                case QuorumMet():
                    self._grace_s[action.round] = action.grace_s
                case RoundClosed():
                    self._closed = action.round
                    grace_s = self._grace_s.pop(action.round, 0.0)
                    if core.schedule.due(action.round):
                        self._saw_closing(core, action, grace_s)
                case _:
                    pass

    def _saw_closing(self, core: SyncerCore, closed: RoundClosed, grace_s: float) -> None:
        spent = 0.0 < grace_s <= closed.grace_spent_s + HAIR_S
        self._note(core, AlarmKind.GRACE_SPENT, spent and len(closed.participants) < len(core.members.live()))

    def _saw_publication(self, core: SyncerCore) -> None:
        self._publications += 1
        live = core.members.live()
        steps = sorted(m.step_s for m in live if m.step_s is not None)
        if not steps or self._publications < ENOUGH_ROUNDS:
            return
        degrade = core.setting.when_short == "degrade"
        quorum = effective_quorum(min_quorum=core.setting.min_quorum, live=len(live), degrade=degrade)
        step_s = steps[min(quorum, len(steps)) - 1]
        self._note(core, AlarmKind.SLOW_SYNCER, (core.measured.sync_s or 0.0) > step_s)

    def _note(self, core: SyncerCore, kind: AlarmKind, now: bool) -> None:
        lately = max(32, core.setting.sync_period)
        self._seen[kind] = [*self._seen[kind], now][-lately:]
        raised, withdrawn = MARKS[kind]
        if sum(self._seen[kind]) >= (withdrawn if kind in self.hold else raised) * lately:
            self.hold.add(kind)
        else:
            self.hold.discard(kind)
