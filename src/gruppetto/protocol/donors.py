"""Who gives a newcomer its state, and in which order it asks (section 8). Pure.

A newcomer takes the inner optimizer's state, the buffers and the bases from a learner that trains already: the
syncer's Θ is spared the download, and AdamW goes on with moments that fit the loss instead of with none. If no donor
gives any, it takes what it has saved itself, and else begins afresh.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gruppetto.protocol.membership import Member, MemberPhase
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import NEVER, Fragment, Version

__all__ = ["MAX_DONORS", "Ladder", "Rung", "Source", "choose_donors", "covers"]

MAX_DONORS = 4
"""Named in one Welcome. If none of four gives its state, the fifth hardly will."""
MAX_BUSY = 10
"""How often the donors, all together, may say "come again" before a newcomer begins without them."""


def choose_donors(members: Iterable[Member], newcomer: Member, published: Sequence[Version]) -> tuple[Donor, ...]:
    """Live learners that give their state, best first, at most :data:`MAX_DONORS`; remembers who was sent to whom.

    Live means: it has the weights, so a learner that has never synchronised is never among them. First comes the one to
    which the fewest of those who join now were sent, so that a crowd spreads over all; then the one that has the most
    of the published versions; then the one whose last turn is the longest ago.
    """
    everybody = list(members)
    givers = [m for m in everybody if m.is_live() and m.donates_at and m is not newcomer]
    joining = Counter(m.sent_to for m in everybody if m.phase is MemberPhase.JOINING and m is not newcomer)

    def place(member: Member) -> tuple[int, int, int, str]:
        missing = sum(member.versions.get(Fragment(p), NEVER) < version for p, version in enumerate(published))
        return joining[member.learner], missing, member.turn, member.learner

    best = sorted(givers, key=place)[:MAX_DONORS]
    newcomer.sent_to = best[0].learner if best else None
    if best:
        best[0].turn = 1 + max(m.turn for m in givers)
    return tuple(Donor(learner=m.learner, address=m.donates_at) for m in best)


def covers(held: Sequence[Version], wanted: Sequence[Version]) -> bool:
    """Every fragment is held in the version that is wanted, or a newer one.

    >>> covers((Version(7), Version(6)), (Version(7), Version(5))), covers((Version(7),), (Version(7), Version(0)))
    (True, False)
    """
    return len(held) == len(wanted) and all(have >= want for have, want in zip(held, wanted, strict=True))


class Source(StrEnum):
    """Where the state of a process came from that begins in a run under way; the best first."""

    PEER = "peer"
    """Optimizer state, buffers and bases of a learner that trains."""
    CHECKPOINT = "checkpoint"
    """The learner's own: optimizer state and buffers of some time ago, with the newest Θ on top."""
    SYNCER = "syncer"
    """Θ alone. The inner optimizer begins afresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """What to try now. ``again``: the donor was busy before, and should be given a moment."""

    source: Source
    donor: Donor | None = None
    again: int = 0


class Ladder:
    """The rungs that are left. Every failure leads to the next one, and the last one holds.

    >>> ladder = Ladder([Donor(learner="a", address="h:1"), Donor(learner="b", address="h:2")], checkpoint=False)
    >>> ladder.rung.donor.learner, ladder.busy().donor.learner, ladder.failed().donor.learner, ladder.failed().source
    ('a', 'b', 'a', <Source.SYNCER: 'syncer'>)
    """

    def __init__(self, donors: Iterable[Donor], *, checkpoint: bool) -> None:
        self._left = deque(Rung(source=Source.PEER, donor=donor) for donor in donors)
        self._own = checkpoint
        self._busy_left = MAX_BUSY
        self.rung = self._next()

    def failed(self) -> Rung:
        """The rung has not held: it was dead, damaged, too slow, behind, or does not fit."""
        self.rung = self._next()
        return self.rung

    def busy(self) -> Rung:
        """The donor gives its state to others at this moment: it is asked again after the rest, for a while."""
        rung = self.rung
        assert rung.donor is not None
        if self._busy_left > 0:
            self._busy_left -= 1
            self._left.append(Rung(source=rung.source, donor=rung.donor, again=rung.again + 1))
        return self.failed()

    def _next(self) -> Rung:
        if self._left:
            return self._left.popleft()
        if self._own:
            self._own = False
            return Rung(source=Source.CHECKPOINT)
        return Rung(source=Source.SYNCER)
