"""The syncer's core: events in, actions out, time as an argument (section 3).

Read it from :meth:`SyncerCore.step` down. One round is open at a time::

    SEEDING ─▶ STARTING ─▶ QUORUM ─▶ GRACE ─▶ MERGING ─▶ PERSISTING ─▶ PUBLISHING ─┐
                              ▲                                                    │
                              └──────────────────────── next round ◀───────────────┴─▶ FINISHED
"""

from __future__ import annotations

from collections.abc import Iterable

from gruppetto.protocol import admission
from gruppetto.protocol.actions import (
    Drop,
    Fold,
    MemberChanged,
    Persist,
    Publish,
    QuorumMet,
    RoundClosed,
    Send,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.alarms import Alarms
from gruppetto.protocol.events import (
    Folded,
    LinkLost,
    OuterStepped,
    Persisted,
    PersistFailed,
    Published,
    Seeded,
    Settle,
    SyncerEvent,
    Tick,
)
from gruppetto.protocol.grace import MeasuredTimes, grace_window_s, median
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.membership import Arrival, Member, MemberPhase, Membership
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Ask,
    Begin,
    Deferred,
    Goodbye,
    Heartbeat,
    Hello,
    Progress,
    Refusal,
    RefusalReason,
    Rejection,
    RejectionReason,
    Welcome,
)
from gruppetto.protocol.quorum import Verdict, closing_verdict, effective_quorum, quorum_verdict
from gruppetto.protocol.reception import refusal_for, welcome_for
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.settings import MAX_LEARNERS, ProtocolSetting
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import FIRST_EPOCH, Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.protocol.weighting import contribution_weight

__all__ = ["SyncerCore"]

PERSIST_RETRY_S = 1.0
"""How long a failed persist waits before it is tried again."""


# Deadlines are compared as ``now >= start + length`` everywhere, in the same floating-point form that ``wake_at`` is
# computed in: ``now - start >= length`` may still be false at the very moment asked for, and the core would ask for it
# again, for ever.


class SyncerCore:
    """Decides when each round closes, who is in it and with what weight.

    ``step`` takes one event at time ``now`` (seconds, never decreasing) and returns what to do. ``wake_at`` is the time
    by which ``step(now, Tick())`` wants to be called; None when only an event can change anything. ``waiting_for``
    says in words what the syncer is waiting for. The core never blocks, never raises for what a peer sends, and is
    deterministic.
    """

    def __init__(
        self,
        setting: ProtocolSetting,
        *,
        run_id: str,
        layout_hash: str,
        epoch: Epoch = FIRST_EPOCH,
        state: SyncerState | None = None,
    ) -> None:
        self.setting = setting
        self.run_id, self.layout_hash, self.epoch = run_id, layout_hash, epoch
        self.schedule = setting.schedule
        self.wake_at: float | None = None
        self.waiting_for = "the first learner"
        self.phase = Phase.SEEDING
        self.round = Round(0)
        self.versions: tuple[Version, ...] = ()
        self.published: tuple[Version, ...] = ()
        """What a learner may pull: never anything that is not durable."""
        self.members = Membership(num_slots=setting.slots, max_learners=MAX_LEARNERS)
        self.ledger = Ledger(num_fragments=setting.num_fragments)
        self.cursors: dict[int, int] = {}
        self.rejected: dict[str, int] = {}
        self.measured = MeasuredTimes(factor=setting.ema_factor)
        self._open: OpenRound | None = None
        self._seeder: LearnerId | None = None
        self._to_begin = setting.to_begin
        self._persist_retry_at: float | None = None
        self._persisting: tuple[Fragment, ...] = ()
        self._out: list[SyncerAction] = []
        self._alarms = Alarms(lambda alarm: self._out.append(alarm), solo_rounds=max(8, setting.sync_period))
        if state is not None:
            self._restore(state)

    # ── the two doors ────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, now: float, event: SyncerEvent) -> list[SyncerAction]:
        """Take in one event; return the actions it leads to, in order."""
        self._out = []
        getattr(self, _HANDLERS[type(event)])(now, event)
        for member in self.members.expire(now, self.setting.liveness_s):
            self._note_member(member, f"no heartbeat for {self.setting.liveness_s:g} s")
        self._advance(now)
        self.wake_at = self._next_wake()
        return self._out

    def snapshot(self) -> SyncerState:
        """What must survive a crash."""
        return SyncerState(
            run_id=self.run_id,
            layout_hash=self.layout_hash,
            epoch=self.epoch,
            round=self.round,
            versions=self.versions,
            members=self.members.to_state(),
            cursors=tuple(sorted(self.cursors.items())),
            ledger=self.ledger.copy(),
            rejected=tuple(sorted(self.rejected.items())),
        )

    @property
    def open_round(self) -> OpenRound | None:
        """The round in progress, for whoever shows it."""
        return self._open

    # ── messages and completions ─────────────────────────────────────────────────────────────────────────────────

    def _on_tick(self, now: float, event: Tick) -> None:
        pass

    def _on_hello(self, now: float, hello: Hello) -> None:
        refusal = refusal_for(
            hello,
            run_id=self.run_id,
            layout_hash=self.layout_hash,
            superseded=self.members.recognise(hello) is Arrival.SUPERSEDED,
            finished_at=self.round if self.phase is Phase.FINISHED else None,
            needs_weights=not self.versions and self._seeder is None,
        )
        if refusal is not None:
            self._send(hello.learner, hello.session, refusal)
            return
        arrival = self.members.recognise(hello)
        member = self.members.get(hello.learner)
        if arrival is Arrival.RETURNED and member is not None and member.phase is MemberPhase.LEFT:
            arrival = Arrival.REBORN
        if arrival is not Arrival.RETURNED or member is None:
            if hello.learner in self.ledger.accounts:
                self.ledger.close_account(hello.learner, lost=True, why="died")
            member = self.members.admit(hello, now)
            if member is None:
                text = f"all {self.setting.slots} data slots are leased; raise run.num_slots or let a learner leave"
                self._send(hello.learner, hello.session, Refusal(reason=RefusalReason.FULL, text=text))
                return
            self.ledger.open_account(hello.learner)
        member.connected = True
        member.phase = MemberPhase.JOINING
        member.heard(now)
        member.clock = max(member.clock, self.round)
        member.versions = {Fragment(p): v for p, v in enumerate(hello.versions) if v >= 0}
        if self._open is not None:
            self._open.asked.discard(member.learner)
        self._note_member(member, arrival.value)
        self._welcome(member, hello)

    def _on_progress(self, now: float, news: Progress) -> None:
        member = self._speaker(now, news.learner, news.incarnation)
        if member is None or news.epoch != self.epoch:
            return
        member.clock = max(member.clock, news.clock)
        member.steps = max(member.steps, news.steps)
        member.took_step(news.step_s, self.setting.ema_factor)
        for applied in news.applied:
            if 0 <= applied.fragment < self.setting.num_fragments:
                self.ledger.applied(news.learner, applied)
                member.versions[applied.fragment] = applied.version
        self.ledger.trained(news.learner, news.tokens)
        self._maybe_live(now, member)
        self._ask_again_if_short(member)

    def _on_answer(self, now: float, answer: Answer) -> None:
        self._speaker(now, answer.learner, answer.incarnation)
        reason = self._judge(answer)
        if reason is not None:
            self._reject(answer, reason)
            return
        opened = self._open
        assert opened is not None
        key = (answer.learner, answer.fragment)
        self.ledger.trained(answer.learner, answer.total_tokens)
        self.ledger.merged(answer.learner, answer.fragment, answer.tokens)
        opened.rejected.discard(key)
        opened.admitted[key] = answer.tokens
        opened.folding.add(key)
        member = self.members.get(answer.learner)
        assert member is not None
        self.cursors[member.slot] = max(self.cursors.get(member.slot, 0), answer.cursor)
        weight = contribution_weight(tokens=answer.tokens, steps=answer.steps)
        self._out.append(Fold(round=answer.round, fragment=answer.fragment, learner=answer.learner, weight=weight))

    def _on_deferred(self, now: float, news: Deferred) -> None:
        member = self._speaker(now, news.learner, news.incarnation)
        if member is None or news.epoch != self.epoch or self._open is None or news.round != self._open.round:
            return
        self._open.expected_at[news.learner] = now + max(0.0, news.expected_s)

    def _on_heartbeat(self, now: float, news: Heartbeat) -> None:
        member = self._speaker(now, news.learner, news.incarnation)
        if member is not None:
            self._maybe_live(now, member)

    def _on_goodbye(self, now: float, news: Goodbye) -> None:
        member = self._speaker(now, news.learner, news.incarnation)
        if member is None:
            return
        member.phase, member.connected = MemberPhase.LEFT, False
        self.ledger.close_account(news.learner, lost=False, why="end" if self.phase is Phase.FINISHED else "left")
        self._note_member(member, "goodbye")
        self._choose_another_seeder(member)

    def _on_link_lost(self, now: float, event: LinkLost) -> None:
        member = self.members.current(event.learner, event.incarnation)
        if member is None or not member.connected:
            return
        member.phase, member.connected = MemberPhase.AWAY, False
        self._note_member(member, "link lost")
        self._choose_another_seeder(member)

    def _on_seeded(self, now: float, event: Seeded) -> None:
        if self.phase is not Phase.SEEDING or self.members.current(event.learner, event.incarnation) is None:
            return
        self.versions = (Version(0),) * self.setting.num_fragments
        self.phase = Phase.PERSISTING
        self._persist(self._all_fragments())

    def _on_folded(self, now: float, event: Folded) -> None:
        if self._open is not None and event.round == self._open.round:
            self._open.folding.discard((event.learner, event.fragment))

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        if self.phase is not Phase.MERGING or self._open is None or event.round != self._open.round:
            return
        good = tuple(p for p in self._open.due if p not in event.not_finite)
        for learner, fragment in sorted(self._open.admitted):
            if fragment in event.not_finite:
                self.ledger.voided(learner, self._open.admitted[learner, fragment])
        self.versions = tuple(Version(event.round) if p in good else v for p, v in enumerate(self.versions))
        self.round = event.round
        self.phase = Phase.PERSISTING
        self._alarms.not_finite(event.round, event.not_finite)
        self._alarms.zero_update(event.round, event.zero)
        self._persist(good)

    def _on_persisted(self, now: float, event: Persisted) -> None:
        if self.phase is not Phase.PERSISTING or event.round != self.round:
            return
        self._persist_retry_at = None
        self._alarms.persist_failed(event.round, None)
        self.phase = Phase.PUBLISHING
        self.published = self.versions
        message = Announcement(
            epoch=self.epoch,
            round=self.round,
            versions=tuple((p, self.versions[p]) for p in self._persisting),
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
            self.phase = Phase.STARTING
            return
        assert self._open.closed_at is not None
        self.measured.sync_took(now - self._open.closed_at)
        self._open = None
        if self._is_last(self.round):
            self.phase = Phase.FINISHED
        else:
            self._open_next_round(now)

    def _on_settle(self, now: float, event: Settle) -> None:
        if self.phase is not Phase.FINISHED:
            return
        for learner in sorted(self.ledger.accounts):
            member = self.members.get(learner)
            alive = member is not None and member.connected
            self.ledger.close_account(learner, lost=not alive, why="end")
            if member is not None and member.phase is not MemberPhase.LEFT:
                member.phase, member.connected = MemberPhase.LEFT, False
                self._note_member(member, "the run is over")
        # The books of a finished run are closed: make that durable too.
        self._out.append(Persist(round=self.round, fragments=(), state=self.snapshot()))

    # ── the state machine ────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, now: float) -> None:
        """Take every transition whose time has come."""
        if self.phase is Phase.SEEDING:
            self.waiting_for = f"the first weights, from {self._seeder}" if self._seeder else "the first learner"
        if self.phase is Phase.STARTING:
            self._begin_if_ready(now)
        if self.phase is Phase.QUORUM:
            self._ask_if_quorum(now)
        if self.phase is Phase.GRACE:
            self._close_if_due(now)
        if self.phase is Phase.PERSISTING:
            self.waiting_for = f"round {self.round} to be durable"
            if self._persist_retry_at is not None and now >= self._persist_retry_at:
                self._persist_retry_at = None
                self._persist(self._persisting)
        if self.phase is Phase.FINISHED:
            self.waiting_for = "nothing: the run is finished"

    def _begin_if_ready(self, now: float) -> None:
        live = self.members.live()
        ready_since = min((m.ready_since for m in live if m.ready_since is not None), default=None)
        patience_over = ready_since is not None and now >= ready_since + self.setting.start_timeout_s
        enough = len(live) >= self._to_begin
        quorum = effective_quorum(
            min_quorum=self.setting.min_quorum, live=len(live), degrade=self.setting.when_short == "degrade"
        )
        if not enough and not (patience_over and len(live) >= quorum):
            self.waiting_for = f"learners to begin: {len(live)}/{self._to_begin} are ready"
            return
        begin = Begin(epoch=self.epoch, round=self.round)
        self._open_next_round(now)
        for member in self.members.connected():
            self._send(member.learner, member.session, begin)

    def _open_next_round(self, now: float) -> None:
        following = Round(self.round + 1)
        self._open = OpenRound(round=following, due=self.schedule.due(following), opened_at=now)
        self.phase = Phase.QUORUM

    def _ask_if_quorum(self, now: float) -> None:
        opened = self._open
        assert opened is not None
        live = self.members.live()
        quorum = self._quorum(len(live))
        at_clock = sum(1 for m in live if m.clock >= opened.round)
        verdict = quorum_verdict(quorum=quorum, at_clock=at_clock, live=len(live))
        self.waiting_for = f"round {opened.round}: {verdict.why}"
        self._alarms.quorum_short(opened.round, live=len(live), quorum=quorum)
        if not verdict.close:
            return
        quorum_s = now - opened.opened_at
        self.measured.quorum_took(quorum_s)
        opened.asked_at = now
        opened.grace_s = self._grace_window_s(live)
        self.phase = Phase.GRACE
        self._out.append(
            QuorumMet(round=opened.round, quorum_s=quorum_s, at_clock=at_clock, live=len(live), grace_s=opened.grace_s)
        )
        for member in live:
            self._ask(member)

    def _close_if_due(self, now: float) -> None:
        opened = self._open
        assert opened is not None and opened.asked_at is not None
        live = self.members.live()
        if opened.closing is None:
            verdict = self._closing_verdict(now, opened, live)
            self.waiting_for = f"round {opened.round}: {verdict.why}"
            if not verdict.close:
                return
            opened.closing, opened.closed_at = verdict, now
        if opened.folding:
            # A verdict is final: nobody else comes in while the last contributions are being folded.
            self.waiting_for = f"round {opened.round}: {len(opened.folding)} contributions being folded"
            return
        assert opened.closed_at is not None
        participants = opened.participants()
        self._out.append(
            RoundClosed(
                round=opened.round,
                why=opened.closing.why,
                participants=participants,
                live=len(live),
                grace_spent_s=opened.closed_at - opened.asked_at,
            )
        )
        self._alarms.merged({name: opened.tokens_of(name) for name in participants}, live=len(live))
        self.phase = Phase.MERGING
        self.waiting_for = f"round {opened.round} to be merged"
        self._out.append(TakeOuterStep(round=opened.round, fragments=opened.due))

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        if not opened.due:
            return Verdict(close=True, why="nothing is due")
        assert opened.asked_at is not None
        quorum = self._quorum(len(live))
        answers, waited_for = opened.answers(), opened.waited_for(live)
        self._alarms.quorum_short(opened.round, live=len(live), quorum=quorum)
        stuck = answers < quorum <= len(live) and not waited_for
        self._alarms.answers_short(opened.round, answers=answers, quorum=quorum, stuck=stuck)
        return closing_verdict(
            quorum=quorum,
            answers=answers,
            waited_for=waited_for,
            moved_on=sum(1 for m in live if m.clock > opened.round),
            spent_s=now - opened.asked_at,
            grace_s=opened.grace_s,
            grace_over=now >= opened.asked_at + opened.grace_s,
            grace_on=self.setting.grace,
        )

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _judge(self, answer: Answer) -> RejectionReason | None:
        member = self.members.get(answer.learner)
        known = member is not None and member.phase is not MemberPhase.LEFT and answer.learner in self.ledger.accounts
        in_range = 0 <= answer.fragment < len(self.versions)
        taking = self._open if self.phase is Phase.GRACE else None
        if taking is not None and taking.closing is not None:
            taking = None
        version = self.versions[answer.fragment] if in_range else Version(0)
        oldest = Version(version - self.setting.sync_period) if self.setting.stale == "accept" else None
        return admission.judge(
            answer,
            epoch=self.epoch,
            incarnation=member.incarnation if known and member is not None else None,
            layout_hash=self.layout_hash,
            open_round=taking.round if taking is not None else None,
            due=taking.due if taking is not None and in_range else (),
            answered=taking.admitted if taking is not None else (),
            version=version,
            accept_stale_from=oldest,
            unmerged=known
            and in_range
            and answer.tokens
            == self.ledger.mergeable(answer.learner, answer.fragment, answer.tokens, answer.total_tokens),
        )

    def _grace_window_s(self, live: Iterable[Member]) -> float:
        if not self.setting.grace:
            return 0.0
        return grace_window_s(
            step_s=median([m.step_s for m in live if m.step_s is not None]),
            quorum_s=self.measured.quorum_s,
            sync_s=self.measured.sync_s,
            overlap_steps=self.setting.overlap_steps,
            grace_factor=self.setting.grace_factor,
        )

    def _quorum(self, live: int) -> int:
        return effective_quorum(
            min_quorum=self.setting.min_quorum, live=live, degrade=self.setting.when_short == "degrade"
        )

    def _is_last(self, round: Round) -> bool:
        return self.setting.rounds is not None and round >= self.setting.rounds

    def _next_wake(self) -> float | None:
        times = [self.members.next_expiry(self.setting.liveness_s), self._persist_retry_at]
        if self.phase is Phase.STARTING:
            ready = [m.ready_since for m in self.members.live() if m.ready_since is not None]
            times += [since + self.setting.start_timeout_s for since in ready]
        if self.phase is Phase.GRACE and self._open is not None and self._open.asked_at is not None:
            opened = self._open
            if opened.closing is None and opened.answers() >= self._quorum(len(self.members.live())):
                times.append(self._open.asked_at + opened.grace_s)
        return min((t for t in times if t is not None), default=None)

    # ── doing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _welcome(self, member: Member, hello: Hello) -> None:
        seed = self.phase is Phase.SEEDING and self._seeder in (None, member.learner) and hello.can_seed
        if seed:
            self._seeder = member.learner
        welcome = welcome_for(
            member,
            self.setting,
            run_id=self.run_id,
            epoch=self.epoch,
            cursor=self.cursors.get(member.slot, 0),
            round=self.round,
            versions=self.published,
            seed=seed,
            begun=self._open is not None,
        )
        self._send(member.learner, member.session, welcome)

    def _ask(self, member: Member) -> None:
        opened = self._open
        assert opened is not None
        opened.asked.add(member.learner)
        if opened.due:
            self._send(member.learner, member.session, Ask(epoch=self.epoch, round=opened.round, fragments=opened.due))

    def _ask_again_if_short(self, member: Member) -> None:
        """A refused contribution may be made good while the round is short of answers."""
        opened = self._open
        if self.phase is not Phase.GRACE or opened is None or not member.is_live():
            return
        again = tuple(p for p in opened.due if (member.learner, p) in opened.rejected)
        if again and opened.answers() < self._quorum(len(self.members.live())):
            opened.rejected -= {(member.learner, p) for p in again}
            ask = Ask(epoch=self.epoch, round=opened.round, fragments=again)
            self._send(member.learner, member.session, ask)

    def _reject(self, answer: Answer, reason: RejectionReason) -> None:
        self.rejected[reason.value] = self.rejected.get(reason.value, 0) + 1
        self._out.append(Drop(round=answer.round, fragment=answer.fragment, learner=answer.learner, reason=reason))
        opened = self._open
        if opened is not None and answer.round == opened.round and answer.fragment in opened.due:
            key = (answer.learner, answer.fragment)
            if key not in opened.admitted:
                opened.rejected.add(key)
        member = self.members.current(answer.learner, answer.incarnation)
        if member is None or not member.connected:
            return
        rejection = Rejection(epoch=self.epoch, round=answer.round, fragment=answer.fragment, reason=reason)
        self._send(member.learner, member.session, rejection)
        if reason is RejectionReason.STALE_BASE:
            current = self.published[answer.fragment]
            again = Announcement(epoch=self.epoch, round=self.round, versions=((answer.fragment, current),))
            self._send(member.learner, member.session, again)

    def _persist(self, fragments: tuple[Fragment, ...]) -> None:
        self._persisting = fragments
        self._out.append(Persist(round=self.round, fragments=fragments, state=self.snapshot()))

    def _speaker(self, now: float, learner: LearnerId, incarnation: Incarnation) -> Member | None:
        """Whoever speaks lives. None if it is not the present life of a member."""
        member = self.members.current(learner, incarnation)
        if member is not None:
            member.heard(now)
        return member

    def _maybe_live(self, now: float, member: Member) -> None:
        """A connected learner that holds the weights takes part from now on, also in the round that is open."""
        if member.is_live() or not member.connected or not self.versions:
            return
        if not member.has_synchronised(self.setting.num_fragments):
            return
        member.phase = MemberPhase.LIVE
        member.ready_since = now
        self._note_member(member, "synchronised")
        opened = self._open
        if self.phase is Phase.GRACE and opened is not None and member.learner not in opened.asked:
            self._ask(member)

    def _choose_another_seeder(self, gone: Member) -> None:
        if self.phase is not Phase.SEEDING or self._seeder != gone.learner:
            return
        self._seeder = None
        for member in self.members.connected():
            hello = Hello(learner=member.learner, session=member.session, layout_hash=self.layout_hash)
            self._welcome(member, hello)
            return

    def _send(
        self, to: LearnerId, session: str, message: Welcome | Refusal | Begin | Ask | Rejection | Announcement
    ) -> None:
        self._out.append(Send(to=to, session=session, message=message))

    def _note_member(self, member: Member, why: str) -> None:
        self._out.append(MemberChanged(learner=member.learner, state=member.phase.value, why=why))

    def _all_fragments(self) -> tuple[Fragment, ...]:
        return tuple(Fragment(p) for p in range(self.setting.num_fragments))

    def _restore(self, state: SyncerState) -> None:
        """A new life from what the last one made durable. Learners dial in again by themselves."""
        assert state.epoch < self.epoch, "every life of the syncer has an epoch of its own"
        assert state.layout_hash == self.layout_hash and state.run_id == self.run_id
        self.round, self.versions, self.published = state.round, state.versions, state.versions
        # Those who were training go on at once; a restart is no new start.
        self._to_begin = self.setting.min_quorum
        self.ledger = state.ledger.copy()
        self.cursors = dict(state.cursors)
        self.rejected = dict(state.rejected)
        self.members.restore(state.members)
        if self.versions:
            self.phase = Phase.FINISHED if self._is_last(self.round) else Phase.STARTING


# By name, so that a subclass may do one thing differently.
_HANDLERS: dict[type, str] = {
    Tick: "_on_tick",
    Hello: "_on_hello",
    Progress: "_on_progress",
    Answer: "_on_answer",
    Deferred: "_on_deferred",
    Heartbeat: "_on_heartbeat",
    Goodbye: "_on_goodbye",
    LinkLost: "_on_link_lost",
    Seeded: "_on_seeded",
    Folded: "_on_folded",
    OuterStepped: "_on_outer_stepped",
    Persisted: "_on_persisted",
    PersistFailed: "_on_persist_failed",
    Published: "_on_published",
    Settle: "_on_settle",
}
