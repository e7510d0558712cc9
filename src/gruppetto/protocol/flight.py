"""Several rounds in flight: the next ones ask while the answers of the first are still on their way.

By the law (section 3) a round closes when the fleet has made its next step, so an answer has one step for both ways of
a link. A fragment is due again only H rounds later, and the rounds in between have fragments of their own. So up to D
consecutive rounds may be open at once (``rounds_in_flight``), each a step behind the one before, and the fleet has
moved on from round t when it has reached clock t + D::

    t      ask ┄┄┄┄┄┄┄┄┄┄┄┄┄┄ answers ─ merge, persist, publish
    t + 1          ask ┄┄┄┄┄┄┄┄┄┄┄┄┄┄ answers ─ merge, …
    t + 2              │              ask ┄┄┄   D = 2: not before t is published

Only asking and answering overlap. The first open round alone may close, and what comes after its verdict has nobody
beside it: rounds close, are merged, made durable and published in order, so that ledger, trace and checkpoints mean
what they mean for D = 1. With D ≤ H no two open rounds have a fragment in common, and every open round finds the base
that it asks for published.

A commit may fall between a contribution and its outer step. So with D > 1 whatever is folded is a promise until then
(:mod:`gruppetto.protocol.ledger`), as what comes ahead of its round always is: a syncer that dies, or stops, has given
up all open rounds and what was promised to them, and asks anew.
"""

from __future__ import annotations

from gruppetto.protocol.round import OpenRound
from gruppetto.protocol.rounds import Rounds
from gruppetto.protocol.units import Round

__all__ = ["Flight"]


class Flight(Rounds):
    """Opens and asks the rounds behind the first. These never close: each becomes the first in its turn."""

    def _look_ahead(self, now: float) -> None:
        """After every event: the youngest round asks as soon as its quorum is there, and another opens behind it."""
        while self._open is not None and self._open.asked_at is not None:
            youngest = self._later[-1] if self._later else self._open
            if youngest.asked_at is not None:
                if not self._may_open_behind(youngest):
                    return
                youngest = self._new_round(now, Round(youngest.round + 1))
                self._later.append(youngest)
            live = self.members.live()
            at_clock = len([m for m in live if m.clock >= youngest.round])
            if at_clock < self._quorum(len(live)):
                return
            youngest.opened_at = now  # while a round before it is open, waiting costs nobody anything
            self._ask_all(now, youngest, live, at_clock)

    def _may_open_behind(self, youngest: OpenRound) -> bool:
        return 1 + len(self._later) < self.setting.rounds_in_flight and not self._is_last(youngest.round)
