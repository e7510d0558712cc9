"""What the syncer's core knows, and its smallest deeds. :mod:`hearing`, :mod:`rounds`, :mod:`marking` stand on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gruppetto.protocol.actions import MemberChanged, Persist, Send, SyncerAction
from gruppetto.protocol.alarms import Alarms
from gruppetto.protocol.grace import MeasuredTimes
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.maker import maker
from gruppetto.protocol.membership import Member, Membership
from gruppetto.protocol.messages import Announcement, Ask, Begin, Clipping, Marker, Refusal, Rejection, Welcome
from gruppetto.protocol.norms import Ballot, Yardsticks
from gruppetto.protocol.parting import EarlyParts
from gruppetto.protocol.quorum import effective_quorum
from gruppetto.protocol.recovery import republished
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.settings import MAX_LEARNERS, ProtocolSetting
from gruppetto.protocol.state import OlderValue, SyncerState
from gruppetto.protocol.units import FIRST_EPOCH, NEVER, Epoch, Fragment, LearnerId, Round, Version
from gruppetto.protocol.watches import Watches

if TYPE_CHECKING:
    from gruppetto.protocol.marking import OpenMark

__all__ = ["Standing"]

new_send, new_state = maker(Send), maker(SyncerState)


class Standing:
    """The state of a syncer between two events."""

    # In an object of more than thirty attributes without slots, CPython looks every method up anew at each call: first
    # in the object's own dictionary, then along its classes. With slots a call is found where it was the last time.
    __slots__ = (
        "_alarms",
        "_early",
        "_goes_on_until",
        "_last_commit",
        "_later",
        "_mark",
        "_may_publish_until",
        "_news",
        "_open",
        "_out",
        "_overlaps",
        "_persist_retry_at",
        "_seeder",
        "_stopping",
        "_to_begin",
        "_unsaved",
        "_unseen",
        "_waiting_for",
        "_watches",
        "clipped",
        "cursors",
        "epoch",
        "goes_on_elsewhere",
        "layout_hash",
        "ledger",
        "measured",
        "members",
        "phase",
        "published",
        "published_round",
        "rejected",
        "republishing",
        "round",
        "run_id",
        "schedule",
        "setting",
        "versions",
        "wake_at",
        "weights",
        "went_back",
        "yardsticks",
    )

    def __init__(
        self,
        setting: ProtocolSetting,
        *,
        run_id: str,
        layout_hash: str,
        epoch: Epoch = FIRST_EPOCH,
        state: SyncerState | None = None,
        unseen: int = 0,
        damaged: tuple[OlderValue, ...] = (),
        offsets: tuple[int, ...] = (),
    ) -> None:
        """``state`` is what an earlier life left; ``unseen`` rounds after it may have been published, and the values at
        hand of the fragments in ``damaged`` are older than it says (:mod:`gruppetto.protocol.recovery`).
        ``offsets`` are those of the schedule, told where this syncer is a shard."""
        self.setting = setting
        self.run_id, self.layout_hash, self.epoch = run_id, layout_hash, epoch
        self.schedule = replace(setting.schedule, offsets=offsets)
        self.wake_at: float | None = None
        self._waiting_for: str | Callable[[], str] = "the first learner"
        self.phase = Phase.SEEDING
        self.round = Round(0)
        self.versions: tuple[Version, ...] = ()
        self.published: tuple[Version, ...] = ()
        """What a learner may pull: never anything that the last commit does not allow."""
        self.published_round = Round(0)
        """The newest round that is durable, or in the reserve of the last commit: the only one anybody may know of."""
        self.republishing: tuple[Fragment, ...] = ()
        """Fragments whose value is about to get a new version, since the old one may have had another value."""
        self.members = Membership(num_slots=setting.slots, max_learners=MAX_LEARNERS)
        self.ledger = Ledger(num_fragments=setting.num_fragments)
        self.cursors: dict[int, int] = {}
        self.rejected: dict[str, int] = {}
        self.clipped: dict[str, int] = {}
        self.yardsticks = Yardsticks(sync_period=setting.sync_period)
        """Of norms, by fragment and piece."""
        self.weights = Ballot()
        """The usual weight of a contribution."""
        self.measured = MeasuredTimes(factor=setting.ema_factor)
        self._open: OpenRound | None = None
        """The first of the open rounds; ``phase`` is its own."""
        self._later: list[OpenRound] = []
        """Those open behind it, in order (:mod:`gruppetto.protocol.flight`). Only the last may not have asked yet."""
        self._overlaps = setting.rounds_in_flight > 1
        self._goes_on_until: float | None = None
        """The open round stays open until then, unless something happens that could close it."""
        self._early = EarlyParts()
        self._mark: OpenMark | None = None
        self._seeder: LearnerId | None = None
        self._to_begin = setting.to_begin
        self._persist_retry_at: float | None = None
        self._news: tuple[Fragment, ...] = ()
        """What the next publication brings."""
        self._unsaved: set[Fragment] = set()
        """Fragments that have changed since the last commit."""
        self._may_publish_until = Round(0)
        """The last round that the last commit allows to be published."""
        self._unseen = 0
        self._stopping = self._last_commit = False
        """It was told to stop; the commit with which it goes is on its way."""
        self.goes_on_elsewhere = False
        """Another shard of the run has not finished: this one takes learners in beyond its own last round."""
        self.went_back: tuple[tuple[Epoch, Round], ...] = ()
        """See :class:`~gruppetto.protocol.state.SyncerState`."""
        self._out: list[SyncerAction] = []
        lately = max(32, setting.sync_period)
        self._alarms = Alarms(lambda alarm: self._out.append(alarm), solo_rounds=lately)
        self._watches = Watches(self._alarms, rounds=lately)
        if state is not None:
            self._restore(state)
            self._republish(unseen, damaged)

    def snapshot(self) -> SyncerState:
        """What must survive a crash."""
        return new_state(
            run_id=self.run_id,
            layout_hash=self.layout_hash,
            epoch=self.epoch,
            round=self.round,
            versions=self.versions,
            members=self.members.to_state(),
            cursors=tuple(sorted(self.cursors.items())),
            ledger=self.ledger.copy(),
            rejected=tuple(sorted(self.rejected.items())),
            clipped=tuple(sorted(self.clipped.items())),
            yardsticks=self.yardsticks.voted(self.setting.num_fragments),
            value_norms=self.yardsticks.value_norms,
            usual_share=self.yardsticks.share,
            usual_weight=self.weights.median(0),
            reserve=0 if self._is_last(self.round) or self._last_commit else self.setting.reserve,
            went_back=self.went_back,
        )

    @property
    def waiting_for(self) -> str:
        """What the syncer waits for, in words; put together when somebody asks, since nobody does at most events."""
        return self._waiting_for if isinstance(self._waiting_for, str) else self._waiting_for()

    @waiting_for.setter
    def waiting_for(self, words: str) -> None:
        self._waiting_for = words

    @property
    def is_over(self) -> bool:
        """The whole run has reached its last round: who comes now is a visitor, and the books may be closed."""
        return self.phase is Phase.FINISHED and not self.goes_on_elsewhere

    @property
    def finished_early(self) -> bool:
        """Its own rounds are made, and those of other shards are not."""
        return self.phase is Phase.FINISHED and self.goes_on_elsewhere

    @property
    def open_round(self) -> OpenRound | None:
        """The round in progress, the first where there are several, for whoever shows it."""
        return self._open

    @property
    def open_rounds(self) -> tuple[OpenRound, ...]:
        """All of them, in order."""
        return () if self._open is None else (self._open, *self._later)

    def _open_of(self, round: Round) -> OpenRound | None:
        """The open round of this number, if it is one behind the first; else the first."""
        for later in self._later:
            if later.round == round:
                return later
        return self._open

    def _is_asking(self, opened: OpenRound) -> bool:
        """It has asked, and has not come to its merge."""
        return self.phase is Phase.GRACE if opened is self._open else opened.asked_at is not None

    def _restore(self, state: SyncerState) -> None:
        """A new life from what the last one made durable. Learners dial in again by themselves."""
        assert state.epoch < self.epoch, "every life of the syncer has an epoch of its own"
        assert state.layout_hash == self.layout_hash and state.run_id == self.run_id
        self.round, self.versions = state.round, state.versions
        self.published_round, self.published = state.round, state.versions
        # Those who were training go on at once; a restart is no new start.
        self._to_begin = self.setting.min_quorum
        self.ledger = state.ledger.copy()
        self.ledger.broken()
        self.cursors = dict(state.cursors)
        self.rejected = dict(state.rejected)
        self.clipped = dict(state.clipped)
        self.yardsticks.begin(state.value_norms, state.yardsticks, state.usual_share)
        self.weights = Ballot(before=(state.usual_weight,))
        self.went_back = state.went_back
        self.members.restore(state.members)
        if self.versions:
            self.phase = Phase.FINISHED if self._is_last(self.round) else Phase.STARTING

    def _republish(self, unseen: int, damaged: tuple[OlderValue, ...]) -> None:
        """Give what may not be what it is called a name of its own, before anything else happens."""
        for value in damaged:
            self.ledger.fell_back(value.fragment, value.merged)
        round, again = republished(self.schedule, self.round, unseen=unseen, damaged=damaged)
        if round == self.round or not self.versions:
            return
        for p in again:
            self.ledger.came_into_doubt(p, Version(round))
        self.published = tuple(NEVER if p in again else v for p, v in enumerate(self.versions))
        self.versions = tuple(Version(round) if p in again else v for p, v in enumerate(self.versions))
        self.round, self._unseen, self.republishing, self._news = round, unseen, again, again
        self._unsaved.update(again)
        self.phase = Phase.PERSISTING
        self._persist_retry_at = -math.inf  # with the first event

    def _quorum(self, live: int) -> int:
        return effective_quorum(
            min_quorum=self.setting.min_quorum, live=live, degrade=self.setting.when_short == "degrade"
        )

    def _is_last(self, round: Round) -> bool:
        return self.setting.rounds is not None and round >= self.setting.rounds

    def _all_fragments(self) -> tuple[Fragment, ...]:
        return tuple(Fragment(p) for p in range(self.setting.num_fragments))

    def _ask(self, opened: OpenRound, member: Member) -> None:
        opened.asked[member.learner] = member.clock
        missing = opened.due
        if opened.admitted:
            missing = tuple([p for p in opened.due if (member.learner, p) not in opened.admitted])
        if not missing:
            return
        ask = opened.ask
        if ask is None or ask.fragments != missing:
            ask = Ask(epoch=self.epoch, round=opened.round, fragments=missing)
            if missing == opened.due:
                opened.ask = ask
        self._send(member.learner, member.session, ask)

    def _persist(self) -> None:
        """Everything that has changed since the last commit."""
        self.phase = Phase.PERSISTING
        self.ledger.fold_departed(self.setting.departed_named)
        self._out.append(Persist(round=self.round, fragments=tuple(sorted(self._unsaved)), state=self.snapshot()))

    def _send(
        self,
        to: LearnerId,
        session: str,
        message: Welcome | Refusal | Begin | Ask | Rejection | Clipping | Announcement | Marker,
    ) -> None:
        self._out.append(new_send(to=to, session=session, message=message))

    def _note_member(self, member: Member, why: str) -> None:
        self._out.append(MemberChanged(learner=member.learner, state=member.phase.value, why=why))
