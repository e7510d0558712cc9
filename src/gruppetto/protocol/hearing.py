"""What learners say, and what the syncer makes of it: who takes part, and what is admitted (sections 6 and 8)."""

from __future__ import annotations

from gruppetto.protocol import admission
from gruppetto.protocol.actions import Drop, Fold
from gruppetto.protocol.events import LinkLost
from gruppetto.protocol.membership import Arrival, Member, MemberPhase
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Ask,
    Deferred,
    Goodbye,
    Heartbeat,
    Hello,
    Progress,
    Refusal,
    RefusalReason,
    Rejection,
    RejectionReason,
)
from gruppetto.protocol.reception import refusal_for, welcome_for
from gruppetto.protocol.round import Phase
from gruppetto.protocol.standing import Standing
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.protocol.weighting import contribution_weight

__all__ = ["Hearing"]


class Hearing(Standing):
    """Handles every message of a learner. A message of a stranger, or of a past life, changes nothing."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        arrival = self.members.recognise(hello)
        refusal = refusal_for(
            hello,
            run_id=self.run_id,
            layout_hash=self.layout_hash,
            superseded=arrival is Arrival.SUPERSEDED,
            finished_at=self.round if self.phase is Phase.FINISHED and arrival is not Arrival.RETURNED else None,
            needs_weights=not self.versions and self._seeder is None,
        )
        if refusal is not None:
            self._send(hello.learner, hello.session, refusal)
            return
        member = self.members.get(hello.learner)
        if arrival is not Arrival.RETURNED or member is None:
            if hello.learner in self.ledger.accounts:
                self.ledger.close_account(hello.learner, lost=True, why="died")
            if not self.members.has_room_for(hello):
                self._retire_one(now)
            member = self.members.admit(hello, now)
            if member is None:
                text = f"all {self.setting.slots} data slots are leased; raise run.num_slots or let a learner leave"
                self._send(hello.learner, hello.session, Refusal(reason=RefusalReason.FULL, text=text))
                return
            self.ledger.open_account(hello.learner)
        member.connected = True
        member.phase = MemberPhase.JOINING
        member.heard(now)
        # However far it rode on alone: counted from there, rounds would gallop until they had caught up.
        member.clock = self.published_round
        member.versions = {Fragment(p): v for p, v in enumerate(hello.versions) if v >= 0}
        if self._open is not None:
            self._open.asked.pop(member.learner, None)
        self._note_member(member, arrival.value)
        self._welcome(member, hello)
        if self.phase is Phase.FINISHED:
            # It was away when the run ended: it may have the last weights, and is told that they are the last.
            end = Announcement(epoch=self.epoch, round=self.round, versions=(), finished=True)
            self._send(member.learner, member.session, end)

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
        reason = self.judge(answer)
        if reason is not None:
            self._reject(answer, reason)
            return
        opened = self._open
        assert opened is not None
        key = (answer.learner, answer.fragment)
        self.ledger.trained(answer.learner, answer.total_tokens)
        self.ledger.merged(answer.learner, answer.fragment, answer.tokens, answer.total_tokens)
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

    def _retire_one(self, now: float) -> None:
        """Who has been silent the longest gives up its data slot: restarts under ever new names must not fill all."""
        member = self.members.longest_away(now, self.setting.liveness_s)
        if member is None:
            return
        member.phase, member.connected = MemberPhase.LEFT, False
        if member.learner in self.ledger.accounts:
            self.ledger.close_account(member.learner, lost=True, why="died")
        self._note_member(member, "its data slot goes to a newcomer")

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
            round=self.published_round,
            versions=self.published,
            seed=seed,
            begun=self._open is not None,
        )
        self._send(member.learner, member.session, welcome)

    def _choose_another_seeder(self, gone: Member) -> None:
        if self.phase is not Phase.SEEDING or self._seeder != gone.learner:
            return
        self._seeder = None
        heard_of = (m for m in self.members.connected() if m.phase is not MemberPhase.AWAY)
        other = next(heard_of, None)
        if other is not None:
            self._welcome(other, Hello(learner=other.learner, session=other.session, layout_hash=self.layout_hash))

    def judge(self, answer: Answer) -> RejectionReason | None:
        """Why ``answer`` may not be merged now; None if it may. Changes nothing: a shell may ask before it listens."""
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
            and self.ledger.is_open(answer.learner, answer.fragment, answer.tokens, answer.total_tokens),
        )

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
