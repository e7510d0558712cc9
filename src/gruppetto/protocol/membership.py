"""Who takes part: learners, their incarnations, leases and data slots (section 8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from gruppetto.protocol.grace import ema
from gruppetto.protocol.heading import Heading
from gruppetto.protocol.messages import Hello
from gruppetto.protocol.state import MemberState
from gruppetto.protocol.units import NEVER, Fragment, Incarnation, LearnerId, Version

__all__ = ["Arrival", "Member", "MemberPhase", "Membership"]


class MemberPhase(StrEnum):
    """Where a learner stands."""

    JOINING = "joining"
    """Connected, but it has not yet applied the global weights."""
    LIVE = "live"
    """Connected, synchronised, heard of within the liveness period. Only these count for the quorum."""
    AWAY = "away"
    """Its link is down or its heartbeat is missing. It may come back as the same incarnation."""
    LEFT = "left"
    """It said goodbye."""


LIVE, JOINING, LEFT = MemberPhase.LIVE, MemberPhase.JOINING, MemberPhase.LEFT
"""Looked at for every member at every event."""


class Arrival(StrEnum):
    """What a Hello turned out to be."""

    NEW = "new"
    RETURNED = "returned"
    """The same process, after a lost link or a restart of the syncer."""
    REBORN = "reborn"
    """A new process under a known name; the old incarnation is fenced off."""
    SUPERSEDED = "superseded"
    """An old process whose name has been taken by a newer one."""


@dataclass(slots=True, kw_only=True)
class Member:
    """What the syncer knows of one learner."""

    learner: LearnerId
    session: str
    incarnation: Incarnation
    slot: int
    phase: MemberPhase = MemberPhase.JOINING
    clock: int = 0
    step_s: float | None = None
    """Moving average of the reported step times."""
    steps: int = 0
    last_heard: float = 0.0
    connected: bool = True
    ready_since: float | None = None
    versions: dict[Fragment, Version] = field(default_factory=dict)
    """The newest version it reported as applied, per fragment."""
    norm: float | None = None
    """Of its last contribution that came to the norm gate."""
    cosine: float | None = None
    """Of its last contribution that was folded, against the momentum."""
    heading: Heading = field(default_factory=Heading)
    retired: bool = False
    """Its data slot went to a newcomer while it was silent; it may not know."""
    donates_at: str = ""
    """Where it gives its state away; empty: nowhere."""
    turn: int = 0
    """When it was last named first as a donor; rises from one naming to the next."""
    sent_to: LearnerId | None = None
    """The donor that was named first to it, for as long as it joins."""
    continues: str = ""
    """The session from whose part of a checkpoint this process goes on, in the same life."""
    awaited: bool = False
    """See :class:`~gruppetto.protocol.state.MemberState`."""
    _state: MemberState | None = None
    """What was last said of it in a commit; there is one in every round, and it seldom changes."""

    def to_state(self) -> MemberState:
        """What a commit says of it."""
        state, gone = self._state, self.phase is LEFT
        if state is None or (state.session, state.gone, state.awaited) != (self.session, gone, self.awaited):
            self._state = state = MemberState(
                learner=self.learner,
                session=self.session,
                incarnation=self.incarnation,
                slot=self.slot,
                gone=gone,
                awaited=self.awaited,
            )
        return state

    def is_live(self) -> bool:
        return self.phase is LIVE

    def was_live(self, now: float) -> bool:
        """It is, and has become so before ``now``."""
        return self.phase is LIVE and self.ready_since is not None and self.ready_since < now

    def heard(self, now: float) -> None:
        if now > self.last_heard:
            self.last_heard = now

    def made_step(self, clock: int, steps: int, step_s: float, factor: float) -> None:
        """Neither its clock nor its steps go back."""
        if clock > self.clock:
            self.clock = clock
        if steps > self.steps:
            self.steps = steps
        if step_s > 0:
            self.step_s = ema(self.step_s, step_s, factor)

    def has_synchronised(self, num_fragments: int) -> bool:
        """It has applied some version of every fragment."""
        return all(self.versions.get(Fragment(p), NEVER) != NEVER for p in range(num_fragments))


_last_heard = attrgetter("last_heard")


class Membership:
    """All learners of a run, by name. Iterates in sorted order."""

    def __init__(self, *, num_slots: int, max_learners: int) -> None:
        self._members: dict[LearnerId, Member] = {}
        self._num_slots = num_slots
        self._max_learners = max_learners
        self.quiet_until = -math.inf
        """Nobody's lease runs out before."""
        self._most_silent: Member | None = None
        self._heard_then = 0.0

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, learner: LearnerId) -> Member | None:
        return self._members.get(learner)

    def current(self, learner: LearnerId, incarnation: Incarnation) -> Member | None:
        """The member, if ``incarnation`` is its present life and it has not left."""
        member = self._members.get(learner)
        if member is None or member.incarnation != incarnation or member.phase is LEFT:
            return None
        return member

    def live(self) -> list[Member]:
        return [m for m in self._members.values() if m.phase is LIVE]

    def several_live(self) -> bool:
        """At least two are: whoever is asked about has others to be compared with."""
        one = False
        for m in self._members.values():
            if m.phase is LIVE:
                if one:
                    return True
                one = True
        return False

    def connected(self) -> list[Member]:
        return [m for m in self if m.connected and m.phase is not LEFT]

    def recognise(self, hello: Hello) -> Arrival:
        """Tell a newcomer, a returning process, a new process under a known name and a superseded one apart."""
        member = self._members.get(hello.learner)
        if member is None:
            return Arrival.NEW
        if member.session == hello.session:
            # Who has said goodbye and comes back begins a new life: the account of the last one is closed. So does who
            # remembers a life that we do not: its account was lost with a life of the syncer.
            ended = member.phase is MemberPhase.LEFT or hello.incarnation > member.incarnation
            return Arrival.REBORN if ended else Arrival.RETURNED
        if member.awaited and member.session == hello.continues and member.phase is not MemberPhase.LEFT:
            return Arrival.RETURNED
        if 0 < hello.incarnation <= member.incarnation and hello.run_id:
            return Arrival.SUPERSEDED
        return Arrival.REBORN

    def admit(self, hello: Hello, now: float) -> Member | None:
        """Take a NEW or REBORN learner in; None when all places or data slots are taken."""
        old = self._members.get(hello.learner)
        if old is None and len(self._members) >= self._max_learners and not self._forget_one():
            return None
        slot = old.slot if old is not None and old.phase is not MemberPhase.LEFT else self._free_slot(old)
        if slot is None:
            return None
        # Above what it says of itself, too: a life whose admission was lost with the syncer is not taken for this one.
        member = Member(
            learner=hello.learner,
            session=hello.session,
            incarnation=Incarnation(max(old.incarnation if old is not None else 0, hello.incarnation) + 1),
            slot=slot,
            last_heard=now,
        )
        self._put(member)
        return member

    def longest_away(self, now: float, liveness_s: float) -> Member | None:
        """Of those not heard of for a whole liveness period, the one that has been silent the longest."""
        silent = [m for m in self if m.phase is MemberPhase.AWAY and now >= m.last_heard + liveness_s]
        return min(silent, key=lambda m: (m.last_heard, m.learner), default=None)

    def has_room_for(self, hello: Hello) -> bool:
        """A data slot is free for a NEW or REBORN learner."""
        old = self._members.get(hello.learner)
        return (old is not None and old.phase is not MemberPhase.LEFT) or self._free_slot(old) is not None

    def expire(self, now: float, liveness_s: float) -> list[Member]:
        """Learners whose lease ran out just now."""
        if now < self.quiet_until:
            return []
        expired: list[Member] = []
        # Whoever is heard of later, or comes later, expires later than the first of those that are here now.
        self.quiet_until = now + liveness_s
        for m in self:
            if m.phase is LIVE or m.phase is JOINING:
                if now >= m.last_heard + liveness_s:
                    m.phase = MemberPhase.AWAY
                    expired.append(m)
                else:
                    self.quiet_until = min(self.quiet_until, m.last_heard + liveness_s)
        return expired

    def next_expiry(self, liveness_s: float) -> float | None:
        """When the one that has been silent the longest is not live any more.

        It stays that one until it speaks or goes, since time does not go back: whoever comes has just spoken.
        """
        silent = self._most_silent
        if silent is None or not self._is_as_silent(silent):
            there = [m for m in self._members.values() if m.phase is LIVE or m.phase is JOINING]
            if not there:
                return None
            self._most_silent = silent = min(there, key=_last_heard)
            self._heard_then = silent.last_heard
        return self._heard_then + liveness_s

    def _is_as_silent(self, member: Member) -> bool:
        """It is the same life still, has not spoken, and is not known to be away."""
        here = member.phase is LIVE or member.phase is JOINING
        return here and member.last_heard == self._heard_then and self._members.get(member.learner) is member

    def to_state(self) -> tuple[MemberState, ...]:
        return tuple([m.to_state() for m in self._members.values()])

    def restore(self, states: Iterable[MemberState]) -> None:
        """Everybody is away until they dial in again."""
        for s in states:
            phase = MemberPhase.LEFT if s.gone else MemberPhase.AWAY
            self._put(
                Member(
                    learner=s.learner,
                    session=s.session,
                    incarnation=s.incarnation,
                    slot=s.slot,
                    phase=phase,
                    connected=False,
                    awaited=s.awaited,
                )
            )

    def _put(self, member: Member) -> None:
        """Keep the names sorted at every insertion, which is rare, instead of at every look, which is not."""
        self._members[member.learner] = member
        self._members = dict(sorted(self._members.items()))

    def _free_slot(self, old: Member | None) -> int | None:
        """A returning name gets its old slot if that is still free, so that it goes on where it left off."""
        taken = {m.slot for m in self._members.values() if m.phase is not MemberPhase.LEFT}
        if old is not None and old.slot not in taken:
            return old.slot
        return next((slot for slot in range(self._num_slots) if slot not in taken), None)

    def _forget_one(self) -> bool:
        """Drop the oldest name that has left, to make room for a new one."""
        for member in sorted(self._members.values(), key=lambda m: (m.last_heard, m.learner)):
            if member.phase is MemberPhase.LEFT:
                del self._members[member.learner]
                return True
        return False
