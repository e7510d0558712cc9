"""How a round goes (section 3): quorum, ask, grace window, merge, persist, publish.

::

    SEEDING ─▶ STARTING ─▶ QUORUM ─▶ GRACE ─▶ MERGING ─▶ PERSISTING ─▶ PUBLISHING ─┐
                              ▲                                                    │
                              └──────────────────────── next round ◀───────────────┴─▶ FINISHED

Told to stop, it gives up what is open before MERGING, makes a last commit and is STOPPED (:mod:`stopping`).

Deadlines are compared as ``now >= start + length`` everywhere, in the same floating-point form that ``wake_at`` is
computed in: ``now - start >= length`` may still be false at the very moment asked for, and the core would ask for it
again, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from gruppetto.protocol.actions import Persist, Publish, QuorumMet
from gruppetto.protocol.closing import GRACE, MERGING, QUORUM, Closing
from gruppetto.protocol.events import (
    Folded,
    GoesOnElsewhere,
    LookedAround,
    OuterStepped,
    Persisted,
    PersistFailed,
    Published,
    Seeded,
    Settle,
)
from gruppetto.protocol.grace import grace_window_s, median
from gruppetto.protocol.membership import Member, MemberPhase
from gruppetto.protocol.messages import Announcement, Begin
from gruppetto.protocol.quorum import Verdict, quorum_verdict
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.units import Round, Version

__all__ = ["Rounds"]

PERSIST_RETRY_S = 1.0
"""How long a failed persist waits before it is tried again."""
PUBLISHING = Phase.PUBLISHING


class Rounds(Closing):
    """Handles the completion of every slow action, and takes every transition whose time has come."""

    def _on_seeded(self, now: float, event: Seeded) -> None:
        if self.phase is not Phase.SEEDING or self.members.current(event.learner, event.incarnation) is None:
            return
        self.versions = (Version(0),) * self.setting.num_fragments
        self.yardsticks.begin(event.value_norms)
        self._news = self._all_fragments()
        self._unsaved.update(self._news)
        self._persist()

    def _on_folded(self, now: float, event: Folded) -> None:
        opened = self._open_of(event.round)
        if opened is not None and event.round == opened.round:
            opened.folding.discard((event.learner, event.fragment))
        else:
            self._early.folded(event.learner, event.fragment)
        member = self.members.get(event.learner) if event.cosine is not None else None
        if event.cosine is not None and member is not None:
            member.cosine = event.cosine
            member.heading.saw(event.cosine)
            self._alarms.direction({m.learner: m.heading for m in self.members.live()})

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        if self.phase is not Phase.MERGING or self._open is None or event.round != self._open.round:
            return
        good = tuple(p for p in self._open.due if p not in event.not_finite)
        if self.ledger.promised_by or event.not_finite:
            for learner, fragment in sorted(self._open.admitted):
                self.ledger.kept(learner, fragment)
                if fragment in event.not_finite:
                    self.ledger.voided(learner, fragment, self._open.admitted[learner, fragment])
        versions = list(self.versions)
        for p in good:
            versions[p] = Version(event.round)
        self.versions = tuple(versions)
        self.round, self._news = event.round, good
        self._unsaved.update(good)
        self._alarms.not_finite(event.round, self._open.due, event.not_finite)
        self._alarms.zero_update(event.round, self._open.due, event.zero)
        if self._needs_commit():
            self._persist()
        else:
            self._publish()

    def _needs_commit(self) -> bool:
        """The last commit does not allow this round to be published, there will be no other to save it with, or a
        checkpoint waits for one."""
        waits = self._mark is not None and self._mark.round is None
        return waits or self.round > self._may_publish_until or self._is_last(self.round)

    def _on_persisted(self, now: float, event: Persisted) -> None:
        if self.phase is not Phase.PERSISTING or event.round != self.round:
            return
        self._persist_retry_at = None
        self._alarms.persist_failed(event.round, None)
        self._unsaved.clear()
        if self._last_commit:
            self.phase = Phase.STOPPED
            return
        self._may_publish_until = self.round if self._is_last(self.round) else Round(self.round + self.setting.reserve)
        self._publish()

    def _publish(self) -> None:
        self.phase, self.republishing = Phase.PUBLISHING, ()
        self.published, self.published_round = self.versions, self.round
        message = Announcement(
            epoch=self.epoch,
            round=self.round,
            versions=tuple((p, self.versions[p]) for p in self._news),
            finished=self._is_last(self.round),
        )
        self._out.append(Publish(to=tuple(m.learner for m in self.members.connected()), message=message))

    def _on_persist_failed(self, now: float, event: PersistFailed) -> None:
        if self.phase is not Phase.PERSISTING or event.round != self.round:
            return
        self._persist_retry_at = now + PERSIST_RETRY_S
        self._alarms.persist_failed(event.round, event.why)

    def _on_published(self, now: float, event: Published) -> None:
        if self.phase is not Phase.PUBLISHING or event.round != self.round:
            return
        if self._open is None:
            self.phase = Phase.FINISHED if self._is_last(self.round) else Phase.STARTING
            return
        assert self._open.closed_at is not None
        self.measured.sync_took(now - self._open.closed_at)
        self._watches.published(self.round, sync_s=self.measured.sync_s or 0.0, step_s=self._step_of_the_quorum())
        self._open = None
        if self._is_last(self.round):
            self.phase = Phase.FINISHED
        else:
            self._open_next_round(now)

    def _on_goes_on_elsewhere(self, now: float, event: GoesOnElsewhere) -> None:
        self.goes_on_elsewhere = event.goes_on

    def _on_settle(self, now: float, event: Settle) -> None:
        if not self.is_over:
            return
        for learner in sorted(self.ledger.accounts):
            member = self.members.get(learner)
            alive = member is not None and member.connected
            self.ledger.close_account(learner, lost=not alive, why="end")
            if member is not None and member.phase is not MemberPhase.LEFT:
                member.phase, member.connected = MemberPhase.LEFT, False
                self._note_member(member, "the run is over")
        # The books of a finished run are closed: make that durable too.
        self.ledger.fold_departed(self.setting.departed_named)
        self._out.append(Persist(round=self.round, fragments=(), state=self.snapshot()))

    def _advance(self, now: float) -> None:
        """Take every transition whose time has come."""
        if self.phase is MERGING or self.phase is PUBLISHING:
            return  # only the completion of what was begun leads on
        if self.phase is QUORUM or self.phase is GRACE:
            self._go_round(now)
            return
        if self.phase is Phase.SEEDING:
            self.waiting_for = f"the first weights, from {self._seeder}" if self._seeder else "the first learner"
        if self.phase is Phase.STARTING:
            self._begin_if_ready(now)
            self._go_round(now)
        if self.phase is Phase.PERSISTING:
            self.waiting_for = f"round {self.round} to be durable"
            if self._persist_retry_at is not None and now >= self._persist_retry_at:
                self._persist_retry_at = None
                if self.republishing:
                    self._alarms.went_back(self.round, self._unseen, self.republishing)
                self._persist()
        if self.phase is Phase.FINISHED:
            rest = "the other shards to finish" if self.goes_on_elsewhere else "nothing: the run is finished"
            self.waiting_for = rest
        if self.phase is Phase.STOPPED:
            self.waiting_for = "nothing: the syncer stops"

    def _go_round(self, now: float) -> None:
        if self.phase is QUORUM:
            self._ask_if_quorum(now)
        if self.phase is GRACE:
            self._close_if_due(now)

    def _begin_if_ready(self, now: float) -> None:
        live = self.members.live()
        ready_since = min((m.ready_since for m in live if m.ready_since is not None), default=None)
        patience_over = ready_since is not None and now >= ready_since + self.setting.start_timeout_s
        enough = len(live) >= self._to_begin
        if not enough and not (patience_over and len(live) >= self._quorum(len(live))):
            self.waiting_for = f"learners to begin: {len(live)}/{self._to_begin} are ready"
            return
        begin = Begin(epoch=self.epoch, round=self.published_round)
        self._open_next_round(now)
        for member in self.members.connected():
            self._send(member.learner, member.session, begin)

    def _open_next_round(self, now: float) -> None:
        if self._later:
            self._open = self._later.pop(0)
        else:
            self._open = self._new_round(now, Round(self.round + 1))
        self.phase = Phase.QUORUM if self._open.asked_at is None else Phase.GRACE
        if self.phase is QUORUM:
            self._open.opened_at = now

    def _new_round(self, now: float, round: Round) -> OpenRound:
        due, in_flight = self.schedule.due(round), self.setting.rounds_in_flight
        opened = OpenRound(round=round, due=due, opened_at=now, in_flight=in_flight)
        self._early.move_to(opened)
        return opened

    def _ask_if_quorum(self, now: float) -> None:
        opened = self._open
        assert opened is not None
        live, round = self.members.live(), opened.round
        quorum = self._quorum(len(live))
        at_clock = len([m for m in live if m.clock >= round])
        self._waiting_for = lambda: f"round {round}: {_quorum(quorum, at_clock, live).why}"
        self._alarms.quorum_short(now, opened.round, live=len(live), quorum=quorum)
        if at_clock < quorum:
            return  # as the verdict will say, should somebody ask for its words
        self.phase = Phase.GRACE
        self._ask_all(now, opened, live, at_clock)

    def _ask_all(self, now: float, opened: OpenRound, live: list[Member], at_clock: int) -> None:
        quorum_s = now - opened.opened_at
        self.measured.quorum_took(quorum_s)
        opened.asked_at = now
        opened.grace_s = self._grace_window_s(live)
        self._out.append(
            QuorumMet(round=opened.round, quorum_s=quorum_s, at_clock=at_clock, live=len(live), grace_s=opened.grace_s)
        )
        for member in live:
            self._ask(opened, member)

    def _step_of_the_quorum(self) -> float | None:
        """A step of the slowest of the K fastest learners: rounds cannot come faster."""
        live = self.members.live()
        steps = sorted(m.step_s for m in live if m.step_s is not None)
        return steps[min(self._quorum(len(live)), len(steps)) - 1] if steps else None

    def _on_looked_around(self, now: float, event: LookedAround) -> None:
        self._watches.looked(event, (m.learner for m in self.members.live()))

    def _grace_window_s(self, live: Iterable[Member]) -> float:
        if not self.setting.grace:
            return 0.0
        return grace_window_s(
            step_s=median([m.step_s for m in live if m.step_s is not None]),
            quorum_s=self.measured.quorum_s,
            sync_s=self.measured.sync_s,
            overlap_steps=self.setting.overlap_steps,
            grace_factor=self.setting.grace_factor,
            most_steps=self.setting.rounds_in_flight,
        )

    def _next_wake(self) -> float | None:
        wake = self.members.next_expiry(self.setting.liveness_s)
        if self.phase is GRACE:
            opened = self._open
            if opened is not None and opened.closing is None and opened.enough:
                assert opened.asked_at is not None
                wake = _sooner(wake, opened.asked_at + opened.grace_s)
        elif self._persist_retry_at is not None:
            wake = _sooner(wake, self._persist_retry_at)
        if self._mark is not None and self._mark.give_up_at is not None:
            wake = _sooner(wake, self._mark.give_up_at)
        if self.phase is Phase.STARTING:
            # Below the quorum patience ends nothing: whoever comes next wakes the syncer.
            ready = [m.ready_since for m in self.members.live() if m.ready_since is not None]
            if ready and len(ready) >= self._quorum(len(ready)):
                wake = _sooner(wake, min(ready) + self.setting.start_timeout_s)
        return wake


def _quorum(quorum: int, at_clock: int, live: list[Member]) -> Verdict:
    return quorum_verdict(quorum=quorum, at_clock=at_clock, live=len(live))


def _sooner(one: float | None, other: float) -> float:
    return other if one is None or other < one else one
