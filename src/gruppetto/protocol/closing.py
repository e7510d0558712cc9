"""How a round ends (section 3): whom it waits for, and which events leave that as it was.

Every event may be the one that ends a round, and hardly any is. What a look at the round has found holds until
something changes it; :meth:`Closing._changes_nothing` says of an event that it cannot have, so that nobody looks again.
Whatever it passes over wrongly, a round would wait for until its grace is spent: canaries that say too much are caught.
"""

from __future__ import annotations

from gruppetto.protocol.actions import RoundClosed, TakeOuterStep
from gruppetto.protocol.events import Folded, SyncerEvent, Tick
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Answer, Deferred, Progress
from gruppetto.protocol.quorum import GOES_ON, Verdict, closing_verdict
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.standing import Standing

__all__ = ["Closing"]

QUORUM, GRACE, MERGING = Phase.QUORUM, Phase.GRACE, Phase.MERGING
"""Looked at at every event."""


class Closing(Standing):
    """Closes the round that is open when its time has come."""

    def _close_if_due(self, now: float) -> None:
        opened = self._open
        assert opened is not None and opened.asked_at is not None
        self._goes_on_until = None
        live = self.members.live()
        if opened.closing is None:
            verdict = self._closing_verdict(now, opened, live)
            if verdict is GOES_ON:
                self._goes_on_until = opened.asked_at + opened.grace_s if opened.enough else None
                self._waiting_for = lambda: f"round {opened.round}: {self._judged(now, opened, live).why}"
                return
            self.waiting_for = f"round {opened.round}: {verdict.why}"
            if not verdict.close:
                return
            opened.closing, opened.closed_at, opened.live = verdict, now, len(live)
        if opened.folding:
            # A verdict is final: nobody else comes in while the last contributions are being folded.
            self._waiting_for = lambda: f"round {opened.round}: {len(opened.folding)} contributions being folded"
            return
        assert opened.closed_at is not None
        participants = opened.participants()
        self._out.append(
            RoundClosed(
                round=opened.round,
                why=opened.closing.why,
                participants=participants,
                live=opened.live,
                grace_spent_s=opened.closed_at - opened.asked_at,
            )
        )
        self._alarms.merged(opened.tokens_by(participants), live=opened.live)
        if opened.due:
            spent = opened.grace_s > 0 and opened.closed_at >= opened.asked_at + opened.grace_s
            self._watches.closed(opened.round, live=(m.learner for m in live), merged=participants, grace_spent=spent)
        self.phase = Phase.MERGING
        self.waiting_for = f"round {opened.round} to be merged"
        self._out.append(TakeOuterStep(round=opened.round, fragments=opened.due))

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        if not opened.due:
            return Verdict(close=True, why="nothing is due")
        assert opened.asked_at is not None
        quorum, answers = self._quorum(len(live)), opened.answers_that_count(live)
        opened.enough = answers >= quorum
        to_come = opened.somebody_to_come(live)
        self._alarms.quorum_short(now, opened.round, live=len(live), quorum=quorum)
        stuck = answers < quorum <= len(live) and not to_come
        self._alarms.answers_short(now, opened.round, answers=answers, quorum=quorum, stuck=stuck)
        if not opened.enough:
            return GOES_ON  # as the verdict will say, should somebody ask for its words
        early = now < opened.asked_at + opened.grace_s
        if to_come and early and self.setting.grace and opened.moved_on(live) < quorum:
            return GOES_ON
        return self._judged(now, opened, live)

    def _judged(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        assert opened.asked_at is not None
        return closing_verdict(
            quorum=self._quorum(len(live)),
            answers=opened.answers_that_count(live),
            waited_for=opened.waited_for(live),
            moved_on=opened.moved_on(live),
            spent_s=now - opened.asked_at,
            grace_s=opened.grace_s,
            grace_over=now >= opened.asked_at + opened.grace_s,
            grace_on=self.setting.grace,
        )

    def _changes_nothing(self, now: float, event: SyncerEvent) -> bool:
        """A look at the round would find what the last one has found, as after most events.

        ``wake_at`` stays too; it may then come sooner than it need, which costs a spurious Tick.
        """
        if self._mark is not None or self._later or not self._alarms.silent:
            return False
        phase, opened = self.phase, self._open
        if phase is GRACE and opened is not None and opened.closing is not None and opened.folding:
            return type(event) is not Tick  # whatever else comes, only the last of these folds leads on
        if phase is QUORUM or (phase is GRACE and opened is not None and not opened.enough):
            return self._stays_short(now, event)
        return self._stays_open(now, event)

    def _stays_short(self, now: float, event: SyncerEvent) -> bool:
        """The quorum waits still: one that was live before has told of a step, and either is not at the round yet, or
        was asked already and has not answered by it."""
        opened = self._open
        if type(event) is not Progress or opened is None or opened.rejected:
            return False
        member = self.members.get(event.learner)
        return member is not None and member.was_live(now) and (member.clock < opened.round or self.phase is GRACE)

    def _stays_open(self, now: float, event: SyncerEvent) -> bool:
        """The grace window goes on.

        Its time is not over, and ``event`` is of a kind that ends a round only by being the last word of the one that
        was seen to come: nobody has become live or gone by it, no answer was taken back, nobody has moved on.
        """
        until, kind, opened = self._goes_on_until, type(event), self._open
        if until is None or now >= until or self.wake_at != until or opened is None:
            return False
        if kind is Folded:
            return True
        if type(event) is Progress:
            member = self.members.get(event.learner)
            if member is None or not member.was_live(now) or member.clock > opened.round:
                return False
        elif not (kind is Answer or kind is Deferred):
            return False
        return opened.one_is_still_to_come()
