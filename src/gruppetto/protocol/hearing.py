"""What learners say, and what the syncer makes of it: who takes part, and what is admitted (sections 6 and 8)."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.protocol import admission
from gruppetto.protocol.actions import Drop, Persist
from gruppetto.protocol.donors import choose_donors
from gruppetto.protocol.events import LinkLost
from gruppetto.protocol.gate import Gate
from gruppetto.protocol.membership import Arrival, Member, MemberPhase
from gruppetto.protocol.messages import (
    FAILED,
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
    in_a_line,
)
from gruppetto.protocol.parting import round_of_merge
from gruppetto.protocol.reception import refusal_for, visitor, welcome_for
from gruppetto.protocol.round import Phase
from gruppetto.protocol.units import NEVER, UNBORN, Fragment, Incarnation, LearnerId, Round, Version

__all__ = ["Hearing"]

LIVE, LEFT = MemberPhase.LIVE, MemberPhase.LEFT
"""Looked at at every event."""


class Hearing(Gate):
    """Handles every message of a learner. A message of a stranger, or of a past life, changes nothing."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        arrival = self.members.recognise(hello)
        refusal = refusal_for(
            hello,
            run_id=self.run_id,
            layout_hash=self.layout_hash,
            superseded=arrival is Arrival.SUPERSEDED,
            newest_round=self.round if self.republishing else self.published_round,
            went_back=self.went_back,
            needs_weights=not self.versions and self._seeder is None,
        )
        if refusal is not None:
            self._send(hello.learner, hello.session, replace(refusal, epoch=self.epoch))
            return
        if self.is_over and arrival is not Arrival.RETURNED:
            # Nothing is left for it to train: it gets the last weights. No slot, no account and no commit comes of it,
            # and nobody waits for its goodbye.
            self._welcome(visitor(hello), hello)
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
                refusal = Refusal(reason=RefusalReason.FULL, text=text, epoch=self.epoch)
                self._send(hello.learner, hello.session, refusal)
                return
            self.ledger.open_account(hello.learner)
            self.ledger.fold_departed(self.setting.departed_named)
        if arrival is Arrival.RETURNED:
            member.continues = hello.continues
        # A process that goes on in a resumed life takes its place: from now on nobody else can.
        member.session, member.awaited = hello.session, False
        member.connected = True
        member.phase = MemberPhase.JOINING
        member.heard(now)
        member.donates_at = hello.donates_at
        # However far it rode on alone: counted from there, rounds would gallop until they had caught up.
        member.clock = self.published_round
        member.versions = {Fragment(p): v for p, v in enumerate(hello.versions) if v >= 0}
        for opened in self.open_rounds:
            opened.asked.pop(member.learner, None)
        self._note_member(member, arrival.value)
        self._welcome(member, hello)
        if self.finished_early and arrival is not Arrival.RETURNED:
            # No round is to come whose commit would make the lease durable.
            self._out.append(Persist(round=self.round, fragments=(), state=self.snapshot()))

    def _on_progress(self, now: float, news: Progress) -> None:
        member = self._speaker(now, news.learner, news.incarnation)
        if news.epoch != self.epoch:
            return
        if member is None:
            self._let_in_again(now, news)
            return
        member.made_step(news.clock, news.steps, news.step_s, self.setting.ema_factor)
        for applied in news.applied:
            if 0 <= applied.fragment < self.setting.num_fragments:
                self.ledger.applied(news.learner, applied)
                member.versions[applied.fragment] = applied.version
        self.ledger.trained(news.learner, news.tokens)
        if self.finished_early:
            # What it trains on is for other shards alone, which tell nobody here what they merge.
            self.cursors[member.slot] = max(self.cursors.get(member.slot, 0), news.cursor)
        if member.phase is not LIVE:
            self._maybe_live(now, member)
        if (self._open is not None and self._open.rejected) or self._later:
            self._ask_again_if_short(member)

    def _on_answer(self, now: float, answer: Answer) -> None:
        self._speaker(now, answer.learner, answer.incarnation)
        reason = self.judge(answer)
        if reason is not None:
            self._reject(answer, reason)
            return
        caps = self._caps(answer)
        self._vote(answer)
        if self._refuses(answer, caps):
            self._reject(answer, RejectionReason.NORM)
        else:
            self._admit(answer, caps)

    def _on_deferred(self, now: float, news: Deferred) -> None:
        member = self._speaker(now, news.learner, news.incarnation)
        opened = self._open_of(news.round)
        if member is None or news.epoch != self.epoch or opened is None or news.round != opened.round:
            return
        opened.expected_at[news.learner] = now + max(0.0, news.expected_s)

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
        why = in_a_line(news.why)
        self._note_member(member, f"{FAILED}{why}" if why else "goodbye")
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
        member.phase, member.connected, member.retired = MemberPhase.LEFT, False, True
        if member.learner in self.ledger.accounts:
            self.ledger.close_account(member.learner, lost=True, why="died")
        self._note_member(member, "its data slot goes to a newcomer")

    def _let_in_again(self, now: float, news: Progress) -> None:
        """It was silent for so long that its slot went to a newcomer, and speaks on over a connection that never broke.
        It is welcomed as a new life, or hears that there is no room; unheeded it would train alone for ever."""
        member = self.members.get(news.learner)
        if member is None or not member.retired or member.incarnation != news.incarnation:
            return
        versions = tuple(member.versions.get(p, NEVER) for p in self._all_fragments())
        again = Hello(
            learner=member.learner,
            session=member.session,
            layout_hash=self.layout_hash,
            run_id=self.run_id,
            incarnation=member.incarnation,
            versions=versions,
            can_seed=False,
            donates_at=member.donates_at,
        )
        self._on_hello(now, again)

    def _speaker(self, now: float, learner: LearnerId, incarnation: Incarnation) -> Member | None:
        """Whoever speaks lives. None if it is not the present life of a member."""
        member = self.members.current(learner, incarnation)
        if member is not None and now > member.last_heard:
            member.last_heard = now
        return member

    def _maybe_live(self, now: float, member: Member) -> None:
        """A connected learner that holds the weights takes part from now on, also in the round that is open."""
        if member.phase is LIVE or not member.connected or not self.versions:
            return
        if not member.has_synchronised(self.setting.num_fragments):
            return
        member.phase = MemberPhase.LIVE
        member.ready_since = now
        self._note_member(member, "synchronised")
        for opened in self.open_rounds:
            if self._is_asking(opened) and member.learner not in opened.asked:
                self._ask(opened, member)

    def _welcome(self, member: Member, hello: Hello) -> None:
        seed = self.phase is Phase.SEEDING and self._seeder in (None, member.learner) and hello.can_seed
        if seed:
            self._seeder = member.learner
        # At round 0 nobody has a state worth giving: every optimizer is as fresh as the newcomer's.
        needy = hello.needs_state and self.published_round > 0 and member.incarnation != UNBORN
        donors = choose_donors(self.members, member, self.published) if needy else ()
        welcome = welcome_for(
            member,
            self.setting,
            run_id=self.run_id,
            epoch=self.epoch,
            cursor=self.cursors.get(member.slot, 0),
            round=self.published_round,
            versions=self.published,
            seed=seed,
            begun=self._open is not None or self.phase is Phase.FINISHED,
            offsets=self.schedule.offsets,
            donors=donors,
            goes_on=bool(hello.continues) and member.continues == hello.continues,
            finished=self.phase is Phase.FINISHED,
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
        known = member is not None and member.phase is not LEFT and answer.learner in self.ledger.accounts
        in_range = 0 <= answer.fragment < len(self.versions)
        opened = self._open_of(answer.round)
        taking: Round | None = None
        due: tuple[Fragment, ...] = ()
        if opened is not None and self._is_asking(opened) and opened.closing is None:
            taking, due = opened.round, opened.due
        if answer.parting and in_range:
            taking, due = self._round_of_merge(answer.fragment), (answer.fragment,)
        key = (answer.learner, answer.fragment)
        here = key in self._early or (opened is not None and opened.round == taking and key in opened.admitted)
        version = self.versions[answer.fragment] if in_range else Version(0)
        oldest = Version(version - self.setting.sync_period) if self.setting.stale == "accept" else None
        return admission.judge(
            answer,
            epoch=self.epoch,
            incarnation=member.incarnation if known and member is not None else None,
            layout_hash=self.layout_hash,
            open_round=taking,
            due=due if in_range else (),
            answered=(key,) if here else (),
            version=version,
            accept_stale_from=oldest,
            unmerged=known
            and in_range
            and self.ledger.is_open(answer.learner, answer.fragment, answer.tokens, answer.total_tokens),
        )

    def tokens_taken(self, answer: Answer) -> int:
        """Of how many tokens the contribution is made that this learner has in the open round of ``answer``; 0: none.

        It need not be ``answer`` itself: that may be another try, or a younger snapshot, of what is here already.
        """
        opened, key = self._open_of(answer.round), (answer.learner, answer.fragment)
        if opened is None or (answer.epoch, answer.round) != (self.epoch, opened.round):
            return 0
        return opened.admitted[key] if opened.lives.get(key) == answer.incarnation else 0

    def _round_of_merge(self, fragment: Fragment) -> Round | None:
        """Which round's outer step will take what is folded into ``fragment`` now."""
        last = None if self.setting.rounds is None else Round(self.setting.rounds)
        return round_of_merge(
            fragment, self.schedule, phase=self.phase, opened=self._open, closed=self.round, last=last
        )

    def _reject(self, answer: Answer, reason: RejectionReason) -> None:
        self.rejected[reason.value] = self.rejected.get(reason.value, 0) + 1
        self._out.append(Drop(round=answer.round, fragment=answer.fragment, learner=answer.learner, reason=reason))
        opened = self._open_of(answer.round)
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
            again = Announcement(epoch=self.epoch, round=self.published_round, versions=((answer.fragment, current),))
            self._send(member.learner, member.session, again)

    def _ask_again_if_short(self, member: Member) -> None:
        """A refused contribution may be made good while its round is short of answers."""
        if not member.is_live():
            return
        for opened in self.open_rounds:
            if not opened.rejected or not self._is_asking(opened):
                continue
            again = tuple(p for p in opened.due if (member.learner, p) in opened.rejected)
            if again and opened.answers() < self._quorum(len(self.members.live())):
                opened.rejected -= {(member.learner, p) for p in again}
                ask = Ask(epoch=self.epoch, round=opened.round, fragments=again)
                self._send(member.learner, member.session, ask)
