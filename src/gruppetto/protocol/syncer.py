"""The syncer's core: events in, actions out, time as an argument (section 3).

One class in eight files: :mod:`~gruppetto.protocol.standing` (what it knows), :mod:`~gruppetto.protocol.gate`
(contributions compared with each other), :mod:`~gruppetto.protocol.hearing` (what learners say),
:mod:`~gruppetto.protocol.rounds` (how a round goes), :mod:`~gruppetto.protocol.closing` (how it ends),
:mod:`~gruppetto.protocol.flight` (how the next ones ask meanwhile), :mod:`~gruppetto.protocol.marking` (how a
checkpoint of the whole run is cut), :mod:`~gruppetto.protocol.stopping` (how it goes in good order).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gruppetto.protocol.actions import SyncerAction
from gruppetto.protocol.dispatch import Dispatching
from gruppetto.protocol.events import (
    CheckpointRecorded,
    Folded,
    GoesOnElsewhere,
    LinkLost,
    LookedAround,
    OuterStepped,
    Persisted,
    PersistFailed,
    Published,
    Seeded,
    Settle,
    Stop,
    SyncerEvent,
    TakeCheckpoint,
    Tick,
)
from gruppetto.protocol.flight import Flight
from gruppetto.protocol.hearing import Hearing
from gruppetto.protocol.marking import Marking
from gruppetto.protocol.messages import Answer, Deferred, Goodbye, Heartbeat, Hello, Marked, Progress
from gruppetto.protocol.stopping import Stopping

__all__ = ["SyncerCore"]


class SyncerCore(Hearing, Flight, Marking, Stopping, Dispatching):
    """Decides when each round closes, who is in it and with what weight.

    ``step`` takes one event at time ``now`` (seconds, never decreasing) and returns what to do. ``wake_at`` is the time
    by which ``step(now, Tick())`` wants to be called; None when only an event can change anything. ``waiting_for``
    says in words what the syncer is waiting for. The core never blocks, never raises for what a peer sends, and is
    deterministic.
    """

    HEARD_BY: ClassVar[Mapping[type, str]] = {
        Tick: "_on_tick",
        Hello: "_on_hello",
        Progress: "_on_progress",
        Answer: "_on_answer",
        Deferred: "_on_deferred",
        Heartbeat: "_on_heartbeat",
        Goodbye: "_on_goodbye",
        LinkLost: "_on_link_lost",
        LookedAround: "_on_looked_around",
        Seeded: "_on_seeded",
        Folded: "_on_folded",
        OuterStepped: "_on_outer_stepped",
        Persisted: "_on_persisted",
        PersistFailed: "_on_persist_failed",
        Published: "_on_published",
        GoesOnElsewhere: "_on_goes_on_elsewhere",
        Settle: "_on_settle",
        Stop: "_on_stop",
        TakeCheckpoint: "_on_take_checkpoint",
        CheckpointRecorded: "_on_checkpoint_recorded",
        Marked: "_on_marked",
    }

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        """Take in one event; return the actions it leads to, in order."""
        self._out = []
        self._heard_by[type(event)](self, now, event)
        expired = self.members.expire(now, self.setting.liveness_s) if now >= self.members.quiet_until else ()
        for member in expired:
            self._note_member(member, f"no heartbeat for {self.setting.liveness_s:g} s")
            self._choose_another_seeder(member)
        if not expired and self._changes_nothing(now, event):
            return self._out  # nearly every answer, and every fold, finds the round as the one before has left it
        self._mind_the_mark(now, event)
        self._stop_if_ready()
        self._advance(now)
        if self._overlaps:
            self._look_ahead(now)
        self.wake_at = self._next_wake()
        return self._out

    def _on_tick(self, now: float, event: Tick) -> None:
        pass
