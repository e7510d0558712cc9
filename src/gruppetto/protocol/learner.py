"""A learner's core: it never waits, neither for other learners nor for the syncer (section 2).

One class in four files: :mod:`~gruppetto.protocol.learner_standing` (what it knows),
:mod:`~gruppetto.protocol.applying` (what comes to it), :mod:`~gruppetto.protocol.offering` (what it gives), and this
one: how it comes and goes, and what it does at a step boundary.

The shell calls :meth:`LearnerCore.step` from its training loop (``StepStarted``, ``StepDone``) and from its network
side (all other events), one call at a time. At a boundary the actions come in the order in which they have to be
carried out: apply what has arrived, take the snapshots, answer what is owed, report progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gruppetto.protocol.actions import DropRests, LearnerAction, Recover, SaveState, Seed
from gruppetto.protocol.applying import Applying
from gruppetto.protocol.dispatch import Dispatching
from gruppetto.protocol.events import (
    Arrived,
    Boundary,
    LearnerEvent,
    Leaving,
    LinkDown,
    Recovered,
    StateSaved,
    StepDone,
    StepStarted,
    Taken,
)
from gruppetto.protocol.grace import ema
from gruppetto.protocol.learner_standing import FragmentState
from gruppetto.protocol.maker import maker
from gruppetto.protocol.messages import (
    Announcement,
    Applied,
    Ask,
    Begin,
    Clipping,
    Goodbye,
    Hello,
    Marked,
    Marker,
    Progress,
    Refusal,
    Rejection,
    Welcome,
)
from gruppetto.protocol.offering import Offering
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import NEVER, UNBORN, Fragment

__all__ = ["FragmentState", "LearnerCore", "LearnerState"]

STEP_EMA = 0.1
"""Weight of the newest step in the mean step time with which the next boundary is predicted."""

new_progress = maker(Progress)


class LearnerCore(Applying, Offering, Dispatching):
    """Decides what a learner snapshots, answers, pulls and applies.

    ``step`` takes one event at time ``now`` (seconds, never decreasing). Deterministic, no tensors. ``clock`` is
    the Lamport stamp of the step in progress or just done; ``newest_round`` the newest round it has observed, which
    also indexes learning-rate schedules. ``recovers``: where a run is under way already, look for a state to begin from
    before weights are pulled. ``donates_at``: where others find this learner's own state.
    """

    HEARD_BY: ClassVar[Mapping[type, str]] = {
        Welcome: "_on_welcome",
        Refusal: "_on_refusal",
        Begin: "_on_begin",
        Ask: "_on_ask",
        Rejection: "_on_rejection",
        Clipping: "_on_clipping",
        Announcement: "_on_announcement",
        Marker: "_on_marker",
        LinkDown: "_on_link_down",
        Arrived: "_on_arrived",
        Recovered: "_on_recovered",
        StepStarted: "_on_step_started",
        StepDone: "_on_step_done",
        Boundary: "_on_boundary",
        Leaving: "_on_leaving",
        StateSaved: "_on_state_saved",
        Taken: "_on_taken",
    }

    def hello(self) -> Hello:
        """What to say first on every connection."""
        return Hello(
            learner=self.learner,
            session=self.session,
            layout_hash=self.layout_hash,
            run_id=self.run_id,
            # Resumed and not welcomed yet, it names no life: if its own is not awaited, it gets a new one.
            incarnation=UNBORN if self._resumed else self.incarnation,
            versions=tuple(self._here(Fragment(p), version) for p, version in enumerate(self.held)),
            can_seed=not self.fragments or all(f.version == NEVER for f in self.fragments),
            donates_at=self.donates_at,
            needs_state=self.recovers,
            epoch=self.epoch or self._saved_in,
            continues=self._continues,
        )

    def goodbye(self, why: str = "") -> Goodbye:
        """What to say last; ``why``: of what its training has failed."""
        return Goodbye(learner=self.learner, incarnation=self.incarnation, why=why)

    def step(self, now: float, event: LearnerEvent) -> list[LearnerAction]:
        """Take in one event; return the actions it leads to, in order."""
        self._out = []
        self._heard_by[type(event)](self, now, event)
        return self._out

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        newborn = self.is_newborn(welcome)
        self.run_id, self.epoch, self.incarnation = welcome.run_id, welcome.epoch, welcome.incarnation
        self.rounds = welcome.rounds
        self._schedule = Schedule(
            num_fragments=welcome.num_fragments, sync_period=welcome.sync_period, offsets=welcome.offsets
        )
        self._window, self._apply, self._alpha = welcome.snapshot_window, welcome.apply, welcome.blend_alpha
        self._accepts_stale = welcome.accepts_stale
        if not self.fragments:
            self.fragments = [FragmentState() for _ in range(welcome.num_fragments)]
        if newborn:
            # A new life has a new account: totals start at zero, and its data starts at the durable cursor.
            self.steps, self.tokens = 0, 0
            self.slot, self.cursor = welcome.slot, welcome.cursor
            # What the model holds of the life before belongs to a closed account, and its batches may be somebody
            # else's by now: at the next boundary every base is applied again, or what is newer.
            self._snapshots.clear()
            self._sent.clear()
            self._rests.forget()
            if self._has_rests:
                self._has_rests = False
                self._out.append(DropRests())
            self._of_another_life = {Fragment(p) for p, f in enumerate(self.fragments) if f.version != NEVER}
            for p, fragment in enumerate(self.fragments):
                fragment.from_steps = fragment.from_tokens = 0
                if fragment.version != NEVER:
                    self._arrived.setdefault(Fragment(p), fragment.version)
        self.linked = True
        self.begun, self.finished = self.begun or welcome.begun, self.finished or welcome.finished
        # On every connect the current round is the clock, also for who has ridden on alone for a thousand steps. Who
        # is resumed together with all others may count the step that it had done by then: the round asks for it.
        resumed, self._resumed = self._resumed and not newborn, False
        self._wants_snapshots = resumed
        self.newest_round = welcome.round
        self.clock = min(self.clock, welcome.round + 1) if resumed else welcome.round
        self._marker = None  # what came after it in the old stream may have been lost with it
        # What was asked or on its way before the link broke is asked for again.
        self._last_asked = welcome.round
        self._owed.clear()
        self._wanted.clear()
        if welcome.seed:
            self._out.append(Seed())
        if self.recovers:
            # At round 0 there is nothing that a fresh process does not have, and a visitor will make no step.
            self.recovers, self.recovering = False, welcome.round > 0 and welcome.incarnation != UNBORN
            if self.recovering:
                self._searching_in = self.epoch
                self._out.append(Recover(donors=welcome.donors, versions=welcome.versions))
        for p, version in enumerate(welcome.versions):
            self._want(Fragment(p), version)
        self._settle_rests(welcome.versions)
        if self.synchronised and self.incarnation:
            self._report(self._bases_held() if resumed else ())
        if self.leaving:
            self._part(again=True)

    def _on_refusal(self, now: float, refusal: Refusal) -> None:
        self.linked, self.refusal = False, refusal

    def _on_begin(self, now: float, begin: Begin) -> None:
        if begin.epoch == self.epoch:
            self.begun = True

    def _on_link_down(self, now: float, event: LinkDown) -> None:
        self.linked = False
        self._marker = None
        self._owed.clear()
        self._wanted.clear()

    def _on_leaving(self, now: float, event: Leaving) -> None:
        self.leaving = True
        self._at_boundary()
        self._part(again=False)

    # ── from the training loop ───────────────────────────────────────────────────────────────────────────────────

    def _on_step_started(self, now: float, event: StepStarted) -> None:
        # Stamped at the start: stamped at the end, M staggered learners would drive the syncer up to M times too fast.
        # Said again before the step is done, it renews the stamp of that step.
        before = self.clock if self._started_at is None else self.clock - 1
        self.clock = 1 + max(before, self.newest_round)
        if self._started_at is None or event.anew:
            self._started_at = now

    def _on_step_done(self, now: float, event: StepDone) -> None:
        self.steps += 1
        self.tokens += event.tokens
        self.cursor = event.cursor
        if self._started_at is not None:
            self.step_s, self._started_at = now - self._started_at, None
            self._usual_step_s = ema(self._usual_step_s, self.step_s, STEP_EMA)
        self._at_boundary()

    def _on_boundary(self, now: float, event: Boundary) -> None:
        self._at_boundary()
        if self.leaving:
            self._part(again=False)

    def _at_boundary(self) -> None:
        applied: tuple[Applied, ...] = ()
        if self._marker is not None:
            marker, self._marker = self._marker, None
            applied = self._apply_up_to(min(marker.round, self.newest_round))
            self._save(marker)
        # What has come before its announcement waits for it: the control stream alone says what is before a marker.
        applied += self._apply_up_to(self.newest_round)
        self._wants_snapshots = False
        self._take_snapshots()
        self._answer_what_is_owed()
        if self.incarnation:
            self._report(applied)

    def _report(self, applied: tuple[Applied, ...]) -> None:
        self._out.append(
            new_progress(
                learner=self.learner,
                incarnation=self.incarnation,
                epoch=self.epoch,
                clock=self.clock,
                step_s=self.step_s,
                steps=self.steps,
                tokens=self.tokens,
                cursor=self.cursor,
                applied=applied,
            )
        )

    # ── the cut of a checkpoint ──────────────────────────────────────────────────────────────────────────────────

    def _on_marker(self, now: float, marker: Marker) -> None:
        if marker.epoch == self.epoch and self.linked:
            self._marker = marker

    def _on_state_saved(self, now: float, event: StateSaved) -> None:
        self._answer_the_marker(event.mark, ok=event.ok, text=event.text)

    def _save(self, marker: Marker) -> None:
        """The cut goes through here: everything up to the marker's round is applied, nothing newer is."""
        if self.synchronised:
            self._out.append(SaveState(mark=marker.mark, round=marker.round, state=self.snapshot(), kept=marker.kept))
        else:
            self._answer_the_marker(marker.mark, ok=False, text="it did not have all weights yet")

    def _answer_the_marker(self, mark: str, *, ok: bool, text: str) -> None:
        self._out.append(
            Marked(
                learner=self.learner, incarnation=self.incarnation, epoch=self.epoch, mark=mark, ok=ok, text=text[:1000]
            )
        )
