"""A new life that does not know everything the last one did (section 9).

A commit names the last round that may be published under it: its own, or more with ``durability = "interval"``.
Whatever a new life begins from, rounds up to the highest number so named may be known to learners, and it must use none
of them again. It makes room with one *republication round*::

    state.round ── unseen rounds, perhaps published ──┐
         t         t + 1   t + 2   …   t + u          │ R' = t + u + 1
                                                      └─▶ every fragment due in between, and every damaged one, gets
                                                          version R' with the value at hand; persisted, then published

So a version has one value for ever, learners that hold something newer than the state end with the republished value,
and what was merged in the unseen rounds is lost, and booked so.
"""

from __future__ import annotations

from collections.abc import Iterable

from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.state import OlderValue
from gruppetto.protocol.units import Fragment, Round

__all__ = ["republished", "unseen_rounds"]


def unseen_rounds(round: Round, *, until: Iterable[Round], in_flight: int | None = None) -> int:
    """u: how many rounds after ``round`` may have been published.

    ``until``: for every commit that is known to have been made, whether it can be read or not, the last round that
    may be published under it. ``in_flight``: somebody who has lost his authority may be about to finish one more commit
    unseen, with this reserve; None: whoever wrote here is dead.

    >>> unseen_rounds(Round(40), until=[Round(40)]), unseen_rounds(Round(40), until=[Round(40), Round(63)])
    (0, 23)
    >>> unseen_rounds(Round(40), until=[Round(40)], in_flight=0)
    1
    """
    last = max([round, *until])
    if in_flight is not None:
        last = Round(last + 1 + in_flight)
    return max(0, last - round)


def republished(
    schedule: Schedule, round: Round, *, unseen: int, damaged: Iterable[OlderValue]
) -> tuple[Round, tuple[Fragment, ...]]:
    """R' and the fragments that get it; R' is ``round`` itself, and nothing is republished, when all is known and good.

    >>> republished(Schedule(num_fragments=4, sync_period=4), Round(8), unseen=2, damaged=())
    (11, (1, 2))
    >>> republished(Schedule(num_fragments=4, sync_period=4), Round(8), unseen=0, damaged=())
    (8, ())
    """
    older = {value.fragment for value in damaged}
    if not unseen and not older:
        return round, ()
    again = older | set(schedule.due_within(Round(round + 1), unseen))
    return Round(round + unseen + 1), tuple(sorted(again))
