"""How long a contribution may be, and how heavy: against what learners lately offered (section 6).

A contribution is judged piece by piece against a *yardstick*, the lower median of the norms that learners offered for
that piece. It is a vote: every learner has one a round, and a refused contribution votes like any other. So a minority
cannot move a yardstick, and a majority always can: when everybody's contributions grow, the yardstick grows with them
and nothing is locked. The weights of contributions are held to a yardstick of the same kind.

Three kinds of norm say nothing about how long a piece usually is, and do not vote: zero (the piece was not trained),
what is not finite, and what was collected over less than a period. The last is what a fragment's first round gives: it
may come after a single step, and under a learning rate that is warmed up a whole period is hundreds of times longer.

A piece without votes is measured by its values instead: a contribution should change about the share of them that
others lately did, of whatever fragment. That share follows a warm-up from round to round. Of the very first ones it is
expected that they change a tenth.

>>> ballot = Ballot(before=(2.0,))
>>> ballot.medians
(2.0,)
>>> for name, norm in (("a", 1.0), ("b", 1000.0), ("c", 1.1), ("d", 0.9)):
...     ballot.cast(LearnerId(name), Round(1), (norm,))
>>> ballot.medians
(1.0,)
>>> excess((3.0, 1000.0), (1.0, 1.0), factor=10.0)
((1, 1.0),)
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

from gruppetto.protocol.units import Fragment, LearnerId, Round, Version

__all__ = ["FIRST_SHARE", "MIN_VOTES", "WINDOW", "Ballot", "Yardsticks", "excess"]

MIN_VOTES = 4
"""With fewer the yardstick of the last life counts, or that of the values themselves."""
FIRST_SHARE = 0.1
"""Of its values that a fragment is expected to change by, before anybody has offered anything."""
WINDOW = 16
"""Votes that are kept; more while they are of the last two rounds, so that everybody's vote is in."""


def excess(norms: Sequence[float], yardsticks: Sequence[float], factor: float) -> tuple[tuple[int, float], ...]:
    """(piece, yardstick) of every piece that is longer than ``factor`` times its yardstick; 0 is no yardstick."""
    pairs = enumerate(zip(norms, yardsticks, strict=True))
    return tuple((p, yardstick) for p, (norm, yardstick) in pairs if yardstick > 0 and norm > factor * yardstick)


class Ballot:
    """The lower medians of what was offered lately, value by value; ``before`` is what counts until there are votes.

    A zero casts no vote, and a median of 0 is none.
    """

    def __init__(self, before: tuple[float, ...] = ()) -> None:
        self._before = before
        self._votes: dict[tuple[Round, LearnerId], tuple[float, ...]] = {}
        self._sorted: list[list[float]] = [[] for _ in before]
        """The votes on each value, without zeros; kept in order, since there is a median to be told at every vote."""
        self._recent = (-1, -1)
        """The newest round voted in, and the one before."""
        self._medians: tuple[float, ...] | None = before

    def cast(self, learner: LearnerId, round: Round, values: tuple[float, ...]) -> None:
        """One vote a learner and round: a second one replaces the first."""
        if not self._before:
            self._before = (0.0,) * len(values)
            self._sorted = [[] for _ in values]
        assert len(values) == len(self._before)
        key = (round, learner)
        votes = self._votes
        if key in votes:
            self._strike(votes[key])
        votes[key] = values
        for ordered, value in zip(self._sorted, values, strict=True):
            if value > 0:
                insort(ordered, value)
        newest, before = self._recent
        if round > newest:
            self._recent = (round, newest)
        elif before < round < newest:
            self._recent = (newest, round)
        self._medians = None
        while len(votes) > WINDOW:
            oldest = next(iter(votes))
            if oldest[0] in self._recent:
                break
            self._strike(votes.pop(oldest))

    def _strike(self, values: tuple[float, ...]) -> None:
        for ordered, value in zip(self._sorted, values, strict=True):
            if value > 0:
                del ordered[bisect_left(ordered, value)]

    def median(self, piece: int) -> float:
        """The yardstick of one value; 0 while nothing is known."""
        votes = self._sorted[piece] if self._sorted else ()
        if len(votes) >= MIN_VOTES:
            return votes[(len(votes) - 1) // 2]
        return self._before[piece] if self._before else 0.0

    @property
    def medians(self) -> tuple[float, ...]:
        """One yardstick a value; empty while nothing is known."""
        if self._medians is None:
            self._medians = tuple(map(self.median, range(len(self._before))))
        return self._medians


class Yardsticks:
    """A ballot for every fragment, with one value a piece, and one of all fragments for the share."""

    def __init__(self, *, sync_period: int) -> None:
        self._sync_period = sync_period
        self._values: dict[Fragment, tuple[float, ...]] = {}
        self._ballots: dict[Fragment, Ballot] = {}
        self._share = Ballot(before=(FIRST_SHARE,))

    def begin(
        self,
        value_norms: Sequence[Sequence[float]],
        yardsticks: Sequence[tuple[float, ...]] = (),
        share: float = 0.0,
    ) -> None:
        """Take up the norms of the values, and what the last life knew."""
        self._values = {
            Fragment(p): tuple(x if math.isfinite(x) else 0.0 for x in norms) for p, norms in enumerate(value_norms)
        }
        self._ballots = {Fragment(p): Ballot(before=of_pieces) for p, of_pieces in enumerate(yardsticks)}
        self._share = Ballot(before=(share or FIRST_SHARE,))

    def offered(
        self, learner: LearnerId, round: Round, fragment: Fragment, norms: tuple[float, ...], base_version: Version
    ) -> None:
        """A learner offers pieces of these norms, collected since ``base_version``."""
        of_value = math.hypot(*self._values.get(fragment, ()))
        if of_value > 0:
            self._share.cast(learner, round, (math.hypot(*norms) / of_value,))
        if round - base_version >= self._sync_period:
            self._ballots.setdefault(fragment, Ballot()).cast(learner, round, norms)

    def of(self, fragment: Fragment) -> tuple[float, ...]:
        """One a piece, 0 where there is none; empty while nothing is known of the fragment."""
        voted, by_value = self._voted(fragment), tuple(self.share * norm for norm in self._values.get(fragment, ()))
        if not (voted and by_value):
            return voted or by_value
        return tuple(v or b for v, b in zip(voted, by_value, strict=True))

    @property
    def share(self) -> float:
        """How much of a fragment's values a contribution lately changed, norm by norm."""
        return self._share.median(0)

    @property
    def value_norms(self) -> tuple[tuple[float, ...], ...]:
        return tuple(self._values.values())

    def voted(self, num_fragments: int) -> tuple[tuple[float, ...], ...]:
        """The yardsticks that come of votes, 0 where there are none; what a restart begins with."""
        return tuple(self._voted(Fragment(p)) for p in range(num_fragments)) if self._ballots else ()

    def _voted(self, fragment: Fragment) -> tuple[float, ...]:
        ballot = self._ballots.get(fragment)
        return () if ballot is None else ballot.medians
