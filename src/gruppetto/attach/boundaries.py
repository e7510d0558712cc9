"""The step boundaries of a learner: what happens between two steps of its loop, and around a forward pass."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import SupportsIndex, TypeVar

from gruppetto.attach.comings import Comings
from gruppetto.attach.counting import StepCounts
from gruppetto.attach.follow import Follow
from gruppetto.attach.run_ahead import RunAhead
from gruppetto.attach.watching import Glance, Watch
from gruppetto.errors import ConnectionLost, LayoutError, RunFailed, StateError
from gruppetto.protocol.events import StepDone, StepStarted
from gruppetto.runtime.orders import DropCut, GiveCut

__all__ = ["Boundaries"]

log = logging.getLogger("gruppetto.learner")

Item = TypeVar("Item")

LOOK_STEPS = 64
"""Steps between two looks at whether the model still has the parameters it was attached with."""


class Boundaries(Comings):
    """That side of a :class:`~gruppetto.attach.learner.Learner`."""

    _counts: StepCounts
    _glance: Glance
    _watch: Watch
    _run_ahead: RunAhead
    """Of rank 0, or of a learner that is alone."""
    _strict: bool
    """A lost link ends the loop."""
    _fresh: bool
    """No forward pass to be trained on since the boundary ..."""
    _evaluated: bool
    """... but an evaluation."""
    _said_failure: bool
    _due: str
    """The name of the cut of which this rank is to copy its portion."""

    def step(self, tokens: SupportsIndex | None = None) -> None:
        """A step is done: count it, apply what has arrived, take snapshots, report. Called by the optimizer's hook.

        With ``hook=False`` call it yourself after each optimizer step, with the tokens of the step if they vary.
        Raises :class:`SettingError` for counts that are none, and :class:`LayoutError` (every 64 steps it looks) if a
        parameter has been replaced by another object, whose values the run would never see. Once it has left, a step is
        nobody's.
        """
        if self.left:
            return
        if self._hooks is None:
            raise StateError("a step outside of the with block", where="Learner.step", fix="use `with Learner(...)`")
        if self._rewarm is not None:
            self._rewarm.after_step()
        used = self._counts.take_tokens(tokens)
        if self._whereabouts is not None:
            self._whereabouts.waits()
        self._boundary(used)
        if self._whereabouts is not None and not self.left:
            self._whereabouts.between()

    def _boundary(self, used: int) -> None:
        """Of a step that used so many tokens."""
        if self._follow is not None:
            with self._client.news:
                self._counts.take_cursor()  # rank 0 says it for all
            self._step_behind(self._follow)
            if not self.left:
                self._give_and_save()
            return
        if self._core.steps % LOOK_STEPS == 0:
            self._glance.look(self._holdings.model.check_unchanged, self._watch.look)
        met = self._conduct.meet()
        report = replace(met, stays=met.stays and not self._notice.look())
        with self._client.news:  # no new life may begin between the cursor and the core
            if self._ranks is not None and report.stays and report.loops:
                self._have_portions_given()
            done = StepDone(tokens=used, cursor=self._counts.take_cursor())
            held = self._conduct.release(
                done, again=lambda: not (report.stays and report.loops) or self._run_ahead.is_too_far
            )
        if self._has_ended(report):
            return
        if self._ranks is None:
            self._give_and_save()  # before it waits: who has asked waits too
        self._complain()
        if held and self._has_ended(self._run_ahead.wait()):
            return
        if self._ranks is not None:
            self._give_and_save()  # when all of them are through the boundary
        with self._client.news:
            self._hands.feed(StepStarted())
        self._fresh, self._evaluated = True, False

    def _have_portions_given(self) -> None:
        """If somebody has asked for this learner's state: all of its ranks copy theirs at the end of this boundary. The
        lock is held."""
        donations = self._hands.client.donations
        if self._giving is not None and donations is not None and donations.wants_cut():
            self._due = secrets.token_hex(8)
            self._conduct.order(GiveCut(name=self._due))

    def _drop_portions(self, name: str) -> None:
        """Whoever has asked has it, or has gone. From any thread."""
        with self._client.news:
            self._conduct.order(DropCut(name=name))

    def _portion_due(self) -> str:
        if self._follow is not None:
            self._due, self._follow.cut = self._follow.cut, ""
        due, self._due = self._due, ""
        return due

    def _step_behind(self, follow: Follow) -> None:
        """The same on a rank that follows: what rank 0 says of this boundary."""
        wrong: LayoutError | None = None
        if self._core.steps % LOOK_STEPS == 0:
            try:
                self._glance.look(self._holdings.model.check_unchanged)
            except LayoutError as found:
                wrong = found
        try:
            self._heard(follow.through(failed=wrong is not None))
        except RunFailed:
            if wrong is not None:
                raise wrong from None
            raise

    def until_finished(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, until the run has reached its last round or this learner has left: on notice, or closed."""
        iterator = iter(items)
        while not (self.finished or self._left_on_notice()):
            try:
                item = next(iterator)
            except StopIteration:
                return
            if self.left:  # closed by another thread while the item was made
                return
            yield item

    def begins_pass(self, *, training: bool) -> None:
        """A forward pass begins, or an evaluation. Its forward hook tells of the model that was attached; where that is
        not called itself (Lightning calls ``training_step``), say it."""
        if self._hooks is not None:
            self._on_forward(training)

    def _on_forward(self, training: bool) -> None:
        """The step is stamped at the boundary before it; again here, if that stamp has become stale meanwhile."""
        if training and self._whereabouts is not None:
            self._whereabouts.trains()
        if self.left or self._follow is not None:
            return
        if not training:
            self._evaluated = True
        elif self._fresh:
            self._fresh = False
            overtaken = any(each.core.newest_round >= each.core.clock for each in self._hands.everybody)
            if self._evaluated or overtaken:
                with self._client.news:
                    self._hands.feed(StepStarted(anew=self._evaluated))

    def _before_step(self) -> None:
        if self._follow is None:
            self._hands.before_write()
        else:
            self._holdings.before_write()
        if self._giving is not None:
            self._giving.before_write()
        if self._rewarm is not None:
            self._rewarm.before_step()

    def _complain(self) -> None:
        """A later refusal is said once; with ``on_disconnect="raise"`` it, or a lost link, ends the loop."""
        failure = self._hands.failure
        if self._strict and not self.finished:
            if failure is not None:
                raise failure
            lost = next((each.client for each in self._hands.everybody if not each.core.linked), None)
            if lost is not None:
                raise ConnectionLost(f"{lost.trouble or lost.waiting_for}; start this learner again later")
        if failure is not None and not self._said_failure:
            self._said_failure = True
            log.warning("%s; training goes on alone", failure)
