"""What an operator is told, once per cause, in plain words: what is wrong, what to do, and when it is over.

What each alarm means stands in :mod:`gruppetto.protocol.alarm_table`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from gruppetto.protocol.actions import Alarm, AlarmKind, AlarmOver
from gruppetto.protocol.alarm_table import ALARMS, PATIENCE_S, SHARED_AGAIN, SOLO_SHARE
from gruppetto.protocol.heading import ENOUGH, Heading, against_the_others
from gruppetto.protocol.units import Fragment, LearnerId, Round

__all__ = ["Alarms"]

SHORTAGES = frozenset({AlarmKind.QUORUM_SHORT, AlarmKind.ANSWERS_SHORT})
"""What time alone may raise."""


class Alarms:
    """Raises each alarm once, and withdraws it when its cause has gone. ``emit`` takes both."""

    def __init__(self, emit: Callable[[Alarm | AlarmOver], None], *, solo_rounds: int) -> None:
        self._emit = emit
        self._raised: set[AlarmKind] = set()
        self._since: dict[AlarmKind, float] = {}
        self._fragments: dict[AlarmKind, set[Fragment]] = {AlarmKind.NOT_FINITE: set(), AlarmKind.ZERO_UPDATE: set()}
        """Those whose last merge raised it."""
        self._recent: deque[Mapping[LearnerId, int]] = deque(maxlen=solo_rounds)
        self._supplied: dict[LearnerId, int] = {}
        """Tokens of each learner in the recent rounds together."""
        self._against: frozenset[LearnerId] = frozenset()
        self.silent = True
        """No shortage is raised or about to be: at most events there is nothing to take back."""

    def quorum_short(self, now: float, round: Round, *, live: int, quorum: int) -> None:
        if live >= quorum and self.silent:
            return
        self._falls_short(
            now,
            AlarmKind.QUORUM_SHORT,
            live < quorum,
            lambda: f"round {round} waits: {live} of the {quorum} learners it needs are live.",
        )

    def answers_short(self, now: float, round: Round, *, answers: int, quorum: int, stuck: bool) -> None:
        if not stuck and self.silent:
            return
        self._falls_short(
            now,
            AlarmKind.ANSWERS_SHORT,
            stuck,
            lambda: (
                f"round {round} waits: {answers} of the {quorum} contributions it needs were admitted and nobody "
                "else is about to answer."
            ),
        )

    def not_finite(self, round: Round, due: tuple[Fragment, ...], fragments: tuple[Fragment, ...]) -> None:
        """``fragments`` of those ``due`` are; the others hold what their own last round made of them."""
        self._set(
            AlarmKind.NOT_FINITE,
            self._any(AlarmKind.NOT_FINITE, due, fragments),
            lambda: (
                f"round {round}: the merged fragments {list(fragments)} are not finite and were not published; "
                "their old value stays."
            ),
        )

    def zero_update(self, round: Round, due: tuple[Fragment, ...], fragments: tuple[Fragment, ...]) -> None:
        """The same."""
        self._set(
            AlarmKind.ZERO_UPDATE,
            self._any(AlarmKind.ZERO_UPDATE, due, fragments),
            lambda: f"round {round}: the merged update of fragments {list(fragments)} is zero.",
        )

    def persist_failed(self, round: Round, why: str | None) -> None:
        self._set(
            AlarmKind.PERSIST_FAILED,
            why is not None,
            lambda: (
                f"round {round} could not be made durable: {why}. Nothing was published; learners train on. It is "
                "tried again."
            ),
        )

    def went_back(self, round: Round, unseen: int, fragments: tuple[Fragment, ...]) -> None:
        """At the begin of a life that does not know, or has not, everything the last one published."""
        known = round - unseen - 1
        which = f"rounds {known + 1} to {known + unseen} may be lost" if unseen else "no round is lost"
        self._set(
            AlarmKind.WENT_BACK,
            True,
            lambda: (
                f"the last life of the syncer left less than it may have published: {which}; "
                f"fragments {list(fragments)} go on from what is at hand of round {known}, as version {round}. "
                "What was merged in between is booked as lost."
            ),
        )

    def merged(self, tokens: Mapping[LearnerId, int], *, live: int) -> None:
        """Watch for one learner that quietly trains alone while others live."""
        if live < 2:
            self._recent.clear()  # alone is not the same as alone among others
            self._set(AlarmKind.ONE_LEARNER, False, str)
            self._supplied.clear()
            return
        sums = self._supplied
        if len(self._recent) == self._recent.maxlen:
            for name, count in self._recent[0].items():
                sums[name] -= count
                if not sums[name]:
                    del sums[name]
        self._recent.append(tokens)
        for name, count in tokens.items():
            sums[name] = sums.get(name, 0) + count
        if len(self._recent) < (self._recent.maxlen or 0):
            return
        total = sum(sums.values())
        top = max(sorted(sums), key=sums.__getitem__, default=None)
        share = sums[top] / total if top is not None and total else 0.0
        self._set(
            AlarmKind.ONE_LEARNER,
            share > (SHARED_AGAIN if AlarmKind.ONE_LEARNER in self._raised else SOLO_SHARE),
            lambda: f"{top} supplied {share:.0%} of the tokens merged lately though {live} learners are live.",
        )

    def keep(self, kind: AlarmKind, on: bool, facts: Callable[[], str]) -> None:
        """Raise an alarm whose cause is there, once; withdraw one whose cause has gone."""
        self._set(kind, on, facts)

    def holds(self, kind: AlarmKind) -> bool:
        return kind in self._raised

    def direction(self, headings: Mapping[LearnerId, Heading]) -> None:
        """Watch for learners that pull against the others."""
        against = against_the_others(headings, already=self._against)
        if not self._against.issuperset(against):
            self._raised.discard(AlarmKind.DIRECTION)  # one more is news
        self._against = frozenset(against)
        self._set(
            AlarmKind.DIRECTION,
            bool(against),
            lambda: (
                f"the contributions of {', '.join(against)} point against the momentum (over {ENOUGH} and more) while "
                "those of the others do not."
            ),
        )

    def _falls_short(self, now: float, kind: AlarmKind, on: bool, facts: Callable[[], str]) -> None:
        self._set(kind, self._lasts(now, kind, on), facts)
        self.silent = not self._since and self._raised.isdisjoint(SHORTAGES)

    def _lasts(self, now: float, kind: AlarmKind, on: bool) -> bool:
        """The cause has been there for longer than patience."""
        if not on:
            self._since.pop(kind, None)
            return False
        return now >= self._since.setdefault(kind, now) + PATIENCE_S

    def _any(self, kind: AlarmKind, due: tuple[Fragment, ...], raising: tuple[Fragment, ...]) -> bool:
        """The last merge of some fragment raises it. Others of its rounds do not make it come and go."""
        of_kind = self._fragments[kind]
        of_kind.difference_update(due)
        of_kind.update(raising)
        return bool(of_kind)

    def _set(self, kind: AlarmKind, on: bool, facts: Callable[[], str]) -> None:
        if on and kind not in self._raised:
            self._raised.add(kind)
            self._emit(Alarm(kind=kind, text=f"{facts()} {ALARMS[kind].action}"))
        elif not on and kind in self._raised:
            self._raised.remove(kind)
            if ALARMS[kind].lasts:
                self._emit(AlarmOver(kind=kind))
