"""A core that minds its alarms wrongly; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gruppetto.protocol.actions import AlarmKind, AlarmOver, SyncerAction
from gruppetto.protocol.events import LookedAround, SyncerEvent
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import LearnerId, Round
from gruppetto.protocol.watches import Watches

__all__ = [
    "CallsOneSlowRoundAHabit",
    "CallsOneSpentWindowAHabit",
    "LosesPatience",
    "NeverWithdraws",
    "PassesOverWhatIsNoNumber",
    "SeesNoDisk",
]


class NeverWithdraws(SyncerCore):
    """What was once an alarm stays one."""

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        return [action for action in super().step(now, event) if not isinstance(action, AlarmOver)]


class SeesNoDisk(SyncerCore):
    """What the shell sees beside the protocol is nothing to it."""

    def _on_looked_around(self, now: float, event: LookedAround) -> None:
        pass


class LosesPatience(SyncerCore):
    """Who has no part in three rounds is left out already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches = Watches(self._alarms, rounds=3)


class PassesOverWhatIsNoNumber(SyncerCore):
    """A loss that is not finite is none."""

    def _on_looked_around(self, now: float, event: LookedAround) -> None:
        numbers = tuple((name, loss) for name, loss in event.losses if math.isfinite(loss))
        super()._on_looked_around(now, replace(event, losses=numbers))


class _Once(Watches):
    """Of a spent grace window."""

    def closed(
        self, round: Round, *, live: Iterable[LearnerId], merged: Iterable[LearnerId], grace_spent: bool
    ) -> None:
        here, held = list(live), list(merged)
        super().closed(round, live=here, merged=held, grace_spent=grace_spent)
        self._alarms.keep(AlarmKind.GRACE_SPENT, grace_spent and len(held) < len(here), lambda: "once is always.")


class CallsOneSpentWindowAHabit(SyncerCore):
    """One round that spent its grace window and lacked somebody is an alarm."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches = _Once(self._alarms, rounds=32)


class _AtEveryCrossing(Watches):
    """Of a round that took longer than a step."""

    def published(self, round: Round, *, sync_s: float, step_s: float | None) -> None:
        self._alarms.keep(AlarmKind.SLOW_SYNCER, step_s is not None and sync_s > step_s, lambda: "it was slow.")


class CallsOneSlowRoundAHabit(SyncerCore):
    """It has one mark, and looks at the newest round alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watches = _AtEveryCrossing(self._alarms, rounds=32)
