"""What a learner gives: the snapshots that it takes, the answers that it makes of them, and what it hears of those."""

from __future__ import annotations

from gruppetto.protocol.actions import TakeSnapshot
from gruppetto.protocol.learner_standing import LearnerStanding, Moment
from gruppetto.protocol.maker import maker
from gruppetto.protocol.messages import Answer, Ask, Clipping, Deferred, Rejection
from gruppetto.protocol.units import NEVER, Fragment, Round

__all__ = ["Offering"]

new_answer, new_snapshot = maker(Answer), maker(TakeSnapshot)


class Offering(LearnerStanding):
    """A round is asked for; a snapshot that is at hand answers at once, any other at the next boundary."""

    def _on_ask(self, now: float, ask: Ask) -> None:
        if ask.epoch != self.epoch or not self.linked:
            return
        self._last_asked = max(self._last_asked, ask.round)
        if self.leaving:
            return  # all that it has is on its way
        late = []
        for fragment in ask.fragments:
            if not 0 <= fragment < len(self.fragments):
                continue
            if fragment in self._snapshots and not self._is_vain(fragment):
                self._answer(ask.round, fragment)
            else:
                self._owed[fragment] = ask.round
                late.append(fragment)
        if late:
            self._out.append(
                Deferred(
                    learner=self.learner,
                    incarnation=self.incarnation,
                    epoch=self.epoch,
                    round=ask.round,
                    expected_s=self._to_boundary_s(now),
                )
            )

    def _on_rejection(self, now: float, rejection: Rejection) -> None:
        if rejection.epoch == self.epoch:
            self.rejections[rejection.reason.value] = self.rejections.get(rejection.reason.value, 0) + 1

    def _on_clipping(self, now: float, clipping: Clipping) -> None:
        if clipping.epoch == self.epoch:
            self.clippings[clipping.cause.value] = self.clippings.get(clipping.cause.value, 0) + 1

    # ── at a boundary ────────────────────────────────────────────────────────────────────────────────────────────

    def _take_snapshots(self) -> None:
        """Copy what can be asked for next: the fragments of W rounds, and those already owed.

        Rounds come in order, so the next one asked is the one after the last that asked or closed. Counted from the
        own clock instead, a learner whose steps outpace the syncer would keep snapshots of rounds far in the future
        and have none of what it is asked for.
        """
        snapshots, fragments, steps = self._snapshots, self.fragments, self.steps
        snapshots.clear()
        if self._schedule is None or self.finished:
            return  # beyond the last round nobody asks, though the learner may ride on for other shards
        likely = self._schedule.due_within(max(self._last_asked, self.newest_round) + 1, self._window)
        if self._owed:
            likely = tuple(sorted({*likely, *self._owed}))
        if self.leaving:
            likely = tuple(map(Fragment, range(len(fragments))))
        # A snapshot without a base, or without a step since, carries no work: answering it would be refused.
        useful = tuple([p for p in likely if fragments[p].from_steps < steps and fragments[p].version != NEVER])
        if useful:
            snapshots.update(useful)
            self._taken_at = Moment(steps, self.tokens, self.cursor)
            self._out.append(new_snapshot(fragments=useful))

    def _answer_what_is_owed(self) -> None:
        for fragment in sorted(self._owed) if self._owed else ():
            if self.fragments[fragment].version >= self._owed[fragment]:
                del self._owed[fragment]  # the round closed without us and its result is here
            elif fragment in self._snapshots and not self._is_vain(fragment):
                self._answer(self._owed.pop(fragment), fragment)

    def _part(self, *, again: bool) -> None:
        """Give the work of every fragment, each for the next round at which it is due, the soonest first.

        What is on its way stays there, unless the link has broken since (``again``). What would be refused waits for
        the newer value: at the boundary at which that comes, it is given what ``carry`` keeps.
        """
        if self._schedule is None:
            return
        gone = {p for p in self._snapshots if self._is_vain(p)}
        if not again:
            gone |= {p for p, (round, _) in self._sent.items() if round > self.newest_round}
        rounds = ((self._schedule.next_due(p, self.newest_round), p) for p in self._snapshots - gone)
        for round, fragment in sorted(rounds):
            if self.rounds is None or round <= self.rounds:
                self._answer(round, fragment, parting=True)

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, round: Round, fragment: Fragment, *, parting: bool = False) -> None:
        state, then = self.fragments[fragment], self._taken_at
        self._sent[fragment] = (round, then)
        self._out.append(
            new_answer(
                learner=self.learner,
                incarnation=self.incarnation,
                epoch=self.epoch,
                round=round,
                fragment=fragment,
                base_version=state.version,
                steps=then.steps - state.from_steps,
                tokens=then.tokens - state.from_tokens,
                total_tokens=then.tokens,
                cursor=then.cursor,
                layout_hash=self.layout_hash,
                parting=parting,
            )
        )

    def _to_boundary_s(self, now: float) -> float:
        """How far the next boundary is, if this step takes as long as the mean of the last ones."""
        usual_s = self._usual_step_s or 0.0
        return usual_s if self._started_at is None else max(0.0, self._started_at + usual_s - now)
