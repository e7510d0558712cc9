"""Which contributions of a learner of many ranks have been taken: known to whoever gave the last piece.

The other ranks hear "held", and rank 0, whose core has to know, may be one of them. So every rank counts the answers
that were asked for, which are the same on all in the same order, and reports at a boundary how far each fragment's have
been taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment

__all__ = ["Receipts"]

REMEMBERED = 8
"""Answers of one fragment of which it may still be heard that they were taken."""


class Receipts:
    """One rank's. Called with the lock held.

    >>> first = Answer(
    ...     learner="a", incarnation=1, epoch=1, round=3, fragment=0, base_version=0, steps=1, tokens=8, total_tokens=8,
    ...     cursor=1, layout_hash="l",
    ... )
    >>> leads, follows = Receipts(), Receipts()
    >>> leads.asked(first), follows.asked(first), follows.taken(first, tokens=8)
    (None, None, None)
    >>> lowest = [min(pair) for pair in zip(leads.report(1), follows.report(1))]
    >>> [answer.round for answer in leads.heard(lowest)], list(leads.heard(lowest))
    ([3], [])
    """

    def __init__(self) -> None:
        self._asked: dict[Fragment, list[Answer]] = {}
        self._forgotten: dict[Fragment, int] = {}
        """Answers before those in the list."""
        self._taken: dict[Fragment, int] = {}
        """By number, from 1."""
        self._told: dict[Fragment, int] = {}

    def asked(self, answer: Answer) -> None:
        """One more is on its way."""
        waiting = self._asked.setdefault(answer.fragment, [])
        waiting.append(answer)
        if len(waiting) > REMEMBERED:
            waiting.pop(0)
            self._forgotten[answer.fragment] = self._forgotten.get(answer.fragment, 0) + 1

    def taken(self, answer: Answer, tokens: int) -> None:
        """The syncer has taken that one; or another one of its round, if it is of other ``tokens``."""
        fragment = answer.fragment
        same = (answer.epoch, answer.round, tokens)
        for place, one in reversed(list(enumerate(self._asked.get(fragment, []), self._forgotten.get(fragment, 0)))):
            if (one.epoch, one.round, one.tokens) == same:
                self._taken[fragment] = max(self._taken.get(fragment, 0), place + 1)
                return

    def report(self, fragments: int) -> list[int]:
        """How far those of each fragment have been taken, so that the lowest of all ranks' says the most."""
        return [-self._taken.get(Fragment(p), 0) for p in range(fragments)]

    def heard(self, lowest: Sequence[int]) -> Iterator[Answer]:
        """At rank 0: those that have been taken since."""
        for p, number in enumerate(lowest):
            fragment, place = Fragment(p), -number - 1 - self._forgotten.get(Fragment(p), 0)
            waiting = self._asked.get(fragment, [])
            if -number > self._told.get(fragment, 0) and 0 <= place < len(waiting):
                self._told[fragment] = -number
                yield waiting[place]
