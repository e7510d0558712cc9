"""What the syncer's core knows, and its smallest deeds. :mod:`hearing` and :mod:`rounds` stand on it."""

from __future__ import annotations

from gruppetto.protocol.actions import MemberChanged, Persist, Send, SyncerAction
from gruppetto.protocol.alarms import Alarms
from gruppetto.protocol.grace import MeasuredTimes
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.membership import Member, Membership
from gruppetto.protocol.messages import Announcement, Ask, Begin, Refusal, Rejection, Welcome
from gruppetto.protocol.quorum import effective_quorum
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.settings import MAX_LEARNERS, ProtocolSetting
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import FIRST_EPOCH, Epoch, Fragment, LearnerId, Round, Version

__all__ = ["Standing"]


class Standing:
    """The state of a syncer between two events."""

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
        self.published_round = Round(0)
        """The newest round that is durable: the only one that anybody outside may know of."""
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
        self._alarms = Alarms(lambda alarm: self._out.append(alarm), solo_rounds=max(32, setting.sync_period))
        if state is not None:
            self._restore(state)

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

    def _restore(self, state: SyncerState) -> None:
        """A new life from what the last one made durable. Learners dial in again by themselves."""
        assert state.epoch < self.epoch, "every life of the syncer has an epoch of its own"
        assert state.layout_hash == self.layout_hash and state.run_id == self.run_id
        self.round, self.versions = state.round, state.versions
        self.published_round, self.published = state.round, state.versions
        # Those who were training go on at once; a restart is no new start.
        self._to_begin = self.setting.min_quorum
        self.ledger = state.ledger.copy()
        self.cursors = dict(state.cursors)
        self.rejected = dict(state.rejected)
        self.members.restore(state.members)
        if self.versions:
            self.phase = Phase.FINISHED if self._is_last(self.round) else Phase.STARTING

    def _quorum(self, live: int) -> int:
        return effective_quorum(
            min_quorum=self.setting.min_quorum, live=live, degrade=self.setting.when_short == "degrade"
        )

    def _is_last(self, round: Round) -> bool:
        return self.setting.rounds is not None and round >= self.setting.rounds

    def _all_fragments(self) -> tuple[Fragment, ...]:
        return tuple(Fragment(p) for p in range(self.setting.num_fragments))

    def _ask(self, member: Member) -> None:
        opened = self._open
        assert opened is not None
        opened.asked[member.learner] = member.clock
        missing = tuple(p for p in opened.due if (member.learner, p) not in opened.admitted)
        if missing:
            self._send(member.learner, member.session, Ask(epoch=self.epoch, round=opened.round, fragments=missing))

    def _persist(self, fragments: tuple[Fragment, ...]) -> None:
        self._persisting = fragments
        self._out.append(Persist(round=self.round, fragments=fragments, state=self.snapshot()))

    def _send(
        self, to: LearnerId, session: str, message: Welcome | Refusal | Begin | Ask | Rejection | Announcement
    ) -> None:
        self._out.append(Send(to=to, session=session, message=message))

    def _note_member(self, member: Member, why: str) -> None:
        self._out.append(MemberChanged(learner=member.learner, state=member.phase.value, why=why))
