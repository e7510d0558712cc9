"""What becomes of a contribution that may be merged: as it is, for less than it claims, or refused (section 6).

Everything that can be said of a contribution without the others stands in :mod:`~gruppetto.protocol.admission`. Here it
is held to what learners lately offered (:mod:`~gruppetto.protocol.norms`).

Refusing what is too long must never stop a run. So the learners refused are never more than half of those live: if more
are too long, it is the yardstick that is wrong. Nor are they so many that the quorum would be missed. Whoever would be
one too many is clipped, and so are those refused before it, who are asked again.
"""

from __future__ import annotations

import math

from gruppetto.protocol.actions import Fold
from gruppetto.protocol.maker import maker
from gruppetto.protocol.messages import Answer, Ask, ClipCause, Clipping
from gruppetto.protocol.norms import excess
from gruppetto.protocol.round import OpenRound
from gruppetto.protocol.standing import Standing
from gruppetto.protocol.units import Fragment
from gruppetto.protocol.weighting import contribution_weight

__all__ = ["Gate"]

Caps = tuple[tuple[int, float], ...]

LARGEST_FACTOR = 1e9
"""A learner is told at most so many times; beyond, nobody cares how far."""

new_fold = maker(Fold)


class Gate(Standing):
    """Compares contributions with each other, and takes them in."""

    def _caps(self, answer: Answer) -> Caps:
        """(piece, yardstick) of every piece that is too long. Alone there is nobody to be compared with: a run of one
        learner is that learner's training, whatever its steps."""
        if self.setting.norm_gate == "off" or not answer.norms:
            return ()
        yardsticks = self.yardsticks.of(answer.fragment)
        if not yardsticks or not self.members.several_live():
            return ()
        return excess(answer.norms, yardsticks, self.setting.norm_factor * self._periods(answer))

    def _periods(self, answer: Answer) -> float:
        """Who has ridden on while the syncer, or its link, was away brings the work of several periods, which may be so
        many times longer and heavier."""
        return max(1.0, answer.steps / self.setting.sync_period)

    def _vote(self, answer: Answer) -> None:
        """Whatever becomes of it, what is offered counts for the yardstick of those to come."""
        if not answer.norms:
            return
        member = self.members.get(answer.learner)
        if member is not None:
            member.norm = math.hypot(*answer.norms)
            self.yardsticks.offered(
                answer.learner, answer.round, answer.fragment, answer.norms, base_version=answer.base_version
            )

    def _refuses(self, answer: Answer, caps: Caps) -> bool:
        """A contribution with these caps is refused rather than clipped."""
        opened = self._open_of(answer.round)
        if self.setting.norm_gate != "reject" or not caps or opened is None or self._is_ahead(answer):
            return False  # who parts is not asked again: better clipped than lost
        opened.too_long.add((answer.learner, answer.fragment))
        too_long = sum(1 for _, p in opened.too_long if p == answer.fragment)
        live = len(self.members.live())
        if self._may_refuse(too_long, live):
            return True
        self._ask_the_refused_again(opened, answer.fragment)
        return False

    def _may_refuse(self, too_long: int, live: int) -> bool:
        return 2 * too_long <= live and live - too_long >= self._quorum(live)

    def _ask_the_refused_again(self, opened: OpenRound, fragment: Fragment) -> None:
        refused = opened.too_long & opened.rejected
        for learner, p in sorted(refused):
            member = self.members.get(learner)
            if p == fragment and member is not None and member.is_live():
                opened.rejected.discard((learner, p))
                self._send(learner, member.session, Ask(epoch=self.epoch, round=opened.round, fragments=(p,)))

    def _is_ahead(self, answer: Answer) -> bool:
        """It comes from a learner that leaves on notice, before the round that will merge it has opened."""
        opened = self._open_of(answer.round)
        return answer.parting and (opened is None or answer.round != opened.round)

    def _admit(self, answer: Answer, caps: Caps) -> None:
        """Book a contribution and have it folded."""
        opened, member = self._open_of(answer.round), self.members.get(answer.learner)
        assert member is not None
        key = (answer.learner, answer.fragment)
        self.ledger.trained(answer.learner, answer.total_tokens)
        if self._is_ahead(answer):
            self.ledger.promised(answer.learner, answer.fragment, answer.tokens, answer.total_tokens)
            self._early.add(answer)
        else:
            assert opened is not None
            opened.rejected.discard(key)
            opened.admitted[key], opened.lives[key] = answer.tokens, answer.incarnation
            opened.folding.add(key)
            if opened.asked_at is None:
                opened.early.add(key)
            if opened.asked_at is None or self._overlaps:
                # A commit may come, or a checkpoint be cut, before its outer step, and what is merged would be in it.
                self.ledger.promised(answer.learner, answer.fragment, answer.tokens, answer.total_tokens)
            else:
                self.ledger.merged(answer.learner, answer.fragment, answer.tokens, answer.total_tokens)
        self.cursors[member.slot] = max(self.cursors.get(member.slot, 0), answer.cursor)
        weight = self._weight(answer)
        self._out.append(
            new_fold(round=answer.round, fragment=answer.fragment, learner=answer.learner, weight=weight, caps=caps)
        )
        if caps:
            self._clipped(answer, ClipCause.NORM, max(answer.norms[p] / norm for p, norm in caps))

    def _weight(self, answer: Answer) -> float:
        """w, but no more than a few times that of the others; alone there is nobody to be dominated."""
        weight = contribution_weight(tokens=answer.tokens, steps=answer.steps)
        usual, cap = self.weights.median(0), self.setting.weight_cap
        self.weights.cast(answer.learner, answer.round, (weight,))
        if cap is None or weight <= cap * usual:
            return weight
        most = cap * usual * self._periods(answer)
        if not 0 < most < weight or not self.members.several_live():
            return weight
        self._clipped(answer, ClipCause.WEIGHT, weight / usual)
        return most

    def _clipped(self, answer: Answer, cause: ClipCause, factor: float) -> None:
        """Count it, and tell the learner."""
        self.clipped[cause.value] = self.clipped.get(cause.value, 0) + 1
        member = self.members.current(answer.learner, answer.incarnation)
        if member is not None and member.connected:
            clipping = Clipping(
                epoch=self.epoch,
                round=answer.round,
                fragment=answer.fragment,
                cause=cause,
                factor=min(factor, LARGEST_FACTOR),
            )
            self._send(member.learner, member.session, clipping)
