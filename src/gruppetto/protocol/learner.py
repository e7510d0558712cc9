"""A learner's core: it never waits, neither for other learners nor for the syncer (section 2).

The shell calls :meth:`LearnerCore.step` from its training loop (``StepStarted``, ``StepDone``) and from its network
side (all other events), one call at a time. At a boundary the actions come in the order in which they have to be
carried out: apply what has arrived, take the snapshots, answer what is owed, report progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.protocol.actions import Apply, LearnerAction, Pull, Seed, TakeSnapshot
from gruppetto.protocol.events import Arrived, Boundary, LearnerEvent, LinkDown, StepDone, StepStarted
from gruppetto.protocol.grace import ema
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Applied,
    ApplyMode,
    Ask,
    Begin,
    Deferred,
    Goodbye,
    Hello,
    Progress,
    Refusal,
    Rejection,
    Welcome,
)
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.units import NEVER, Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = ["FragmentState", "LearnerCore", "LearnerState"]


STEP_EMA = 0.1
"""Weight of the newest step in the mean step time with which the next boundary is predicted."""


@dataclass(slots=True, kw_only=True)
class FragmentState:
    """What a learner knows of one fragment."""

    version: Version = NEVER
    """The version of its base."""
    steps: int = 0
    """c_steps: inner steps since the fragment was last received."""
    tokens: int = 0
    """c_tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerState:
    """What a learner's checkpoint must hold of its core."""

    run_id: str
    clock: int
    newest_round: Round
    fragments: tuple[tuple[Version, int, int], ...]
    """(base version, c_steps, c_tokens) of each fragment."""
    steps: int
    tokens: int
    cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The counters that belong to a snapshot."""

    base_version: Version
    steps: int
    tokens: int
    total_tokens: int
    cursor: int


class LearnerCore:
    """Decides what a learner snapshots, answers, pulls and applies.

    ``step`` takes one event at time ``now`` (seconds, never decreasing). Deterministic, no tensors. ``clock`` is
    the Lamport stamp of the step in progress or just done; ``newest_round`` the newest round it has observed, which
    also indexes learning-rate schedules.
    """

    def __init__(self, learner: LearnerId, *, session: str, layout_hash: str) -> None:
        self.learner, self.session, self.layout_hash = learner, session, layout_hash
        self.run_id = ""
        self.epoch, self.incarnation = Epoch(0), Incarnation(0)
        self.clock = 0
        self.newest_round = Round(0)
        self.rounds: Round | None = None
        self.slot, self.cursor = 0, 0
        self.steps, self.tokens = 0, 0
        self.fragments: list[FragmentState] = []
        self.linked = False
        """Welcomed, and the link has not closed since."""
        self.begun = False
        self.finished = False
        self.refusal: Refusal | None = None
        self.rejections: dict[str, int] = {}
        self._schedule: Schedule | None = None
        self._window, self._apply, self._alpha = 0, ApplyMode.OVERWRITE, 0.0
        self.step_s = 0.0
        """Seconds that the last step took."""
        self._usual_step_s: float | None = None
        self._started_at: float | None = None
        self._arrived: dict[Fragment, Version] = {}
        self._wanted: dict[Fragment, Version] = {}
        self._marks: dict[Fragment, _Mark] = {}
        self._sent: dict[Fragment, tuple[Round, _Mark]] = {}
        self._owed: dict[Fragment, Round] = {}
        self._last_asked = Round(0)
        self._of_another_life: set[Fragment] = set()
        self._out: list[LearnerAction] = []

    # ── the doors ────────────────────────────────────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        """What to say first on every connection."""
        return Hello(
            learner=self.learner,
            session=self.session,
            layout_hash=self.layout_hash,
            run_id=self.run_id,
            incarnation=self.incarnation,
            versions=tuple(f.version for f in self.fragments),
            can_seed=not self.fragments or all(f.version == NEVER for f in self.fragments),
        )

    def goodbye(self) -> Goodbye:
        """What to say last."""
        return Goodbye(learner=self.learner, incarnation=self.incarnation)

    def step(self, now: float, event: LearnerEvent) -> list[LearnerAction]:
        """Take in one event; return the actions it leads to, in order."""
        self._out = []
        getattr(self, _HANDLERS[type(event)])(now, event)
        return self._out

    @property
    def ready(self) -> bool:
        """It holds the global weights and training has begun: the first step may be made."""
        return self.begun and self.synchronised

    @property
    def synchronised(self) -> bool:
        """It has received every fragment at least once."""
        return bool(self.fragments) and all(f.version != NEVER for f in self.fragments)

    @property
    def has_arrived(self) -> bool:
        """Something is to be applied at the next boundary."""
        return bool(self._arrived)

    @property
    def run_ahead(self) -> int:
        """How many steps it is past the newest round it has observed."""
        return max(0, self.clock - self.newest_round)

    def snapshot(self) -> LearnerState:
        """What a checkpoint must hold."""
        return LearnerState(
            run_id=self.run_id,
            clock=self.clock,
            newest_round=self.newest_round,
            fragments=tuple((f.version, f.steps, f.tokens) for f in self.fragments),
            steps=self.steps,
            tokens=self.tokens,
            cursor=self.cursor,
        )

    def restore(self, state: LearnerState) -> None:
        """Go on from a checkpoint, before the first Welcome.

        Only what has changed since is pulled; every other base is applied again. The work since those bases belonged to
        an earlier life, whose account is closed: it leaves the model, and the counters start at zero.
        """
        assert not self.linked, "restore before connecting"
        self.run_id = state.run_id
        self.clock, self.newest_round = state.clock, state.newest_round
        self.fragments = [FragmentState(version=version) for version, _, _ in state.fragments]
        self.cursor = state.cursor

    # ── from the syncer ──────────────────────────────────────────────────────────────────────────────────────────

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        newborn = welcome.incarnation != self.incarnation
        self.run_id, self.epoch, self.incarnation = welcome.run_id, welcome.epoch, welcome.incarnation
        self.rounds = welcome.rounds
        self._schedule = Schedule(num_fragments=welcome.num_fragments, sync_period=welcome.sync_period)
        self._window, self._apply, self._alpha = welcome.snapshot_window, welcome.apply, welcome.blend_alpha
        if not self.fragments:
            self.fragments = [FragmentState() for _ in range(welcome.num_fragments)]
        if newborn:
            # A new life has a new account: totals start at zero, and its data starts at the durable cursor.
            self.steps, self.tokens = 0, 0
            self.slot, self.cursor = welcome.slot, welcome.cursor
            # What the model holds of the life before belongs to a closed account, and its batches may be somebody
            # else's by now: at the next boundary every base is applied again, or what is newer.
            self._marks.clear()
            self._sent.clear()
            self._of_another_life = {Fragment(p) for p, f in enumerate(self.fragments) if f.version != NEVER}
            for p, fragment in enumerate(self.fragments):
                fragment.steps = fragment.tokens = 0
                if fragment.version != NEVER:
                    self._arrived.setdefault(Fragment(p), fragment.version)
        self.linked = True
        self.begun = self.begun or welcome.begun
        # On every connect the current round is the clock, also for who has ridden on alone for a thousand steps.
        self.newest_round = welcome.round
        self.clock = welcome.round
        # What was asked or on its way before the link broke is asked for again.
        self._last_asked = welcome.round
        self._owed.clear()
        self._wanted.clear()
        if welcome.seed:
            self._out.append(Seed())
        for p, version in enumerate(welcome.versions):
            self._want(Fragment(p), version)
        if self.synchronised:
            self._report(())

    def _on_refusal(self, now: float, refusal: Refusal) -> None:
        self.linked, self.refusal = False, refusal

    def _on_begin(self, now: float, begin: Begin) -> None:
        if begin.epoch == self.epoch:
            self.begun = True

    def _on_ask(self, now: float, ask: Ask) -> None:
        if ask.epoch != self.epoch or not self.linked:
            return
        self._last_asked = max(self._last_asked, ask.round)
        late = []
        for fragment in ask.fragments:
            if not 0 <= fragment < len(self.fragments):
                continue
            if fragment in self._marks:
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

    def _on_announcement(self, now: float, news: Announcement) -> None:
        if news.epoch != self.epoch:
            return
        self.newest_round = max(self.newest_round, news.round)
        self.finished = self.finished or news.finished
        for fragment, version in news.versions:
            self._want(fragment, version)

    def _on_link_down(self, now: float, event: LinkDown) -> None:
        self.linked = False
        self._owed.clear()
        self._wanted.clear()

    def _on_arrived(self, now: float, event: Arrived) -> None:
        if not 0 <= event.fragment < len(self.fragments):
            return
        newest = max(self._arrived.get(event.fragment, NEVER), self.fragments[event.fragment].version)
        if event.version > newest:
            self._arrived[event.fragment] = event.version
        if self._wanted.get(event.fragment, NEVER) <= event.version:
            self._wanted.pop(event.fragment, None)

    # ── from the training loop ───────────────────────────────────────────────────────────────────────────────────

    def _on_step_started(self, now: float, event: StepStarted) -> None:
        # Stamped at the start: stamped at the end, M staggered learners would drive the syncer up to M times too fast.
        # Said again before the step is done, it renews the stamp of that step: what came between was no training.
        before = self.clock if self._started_at is None else self.clock - 1
        self.clock = 1 + max(before, self.newest_round)
        self._started_at = now

    def _on_step_done(self, now: float, event: StepDone) -> None:
        self.steps += 1
        self.tokens += event.tokens
        self.cursor = event.cursor
        if self._started_at is not None:
            self.step_s, self._started_at = now - self._started_at, None
            self._usual_step_s = ema(self._usual_step_s, self.step_s, STEP_EMA)
        for fragment in self.fragments:
            fragment.steps += 1
            fragment.tokens += event.tokens
        self._at_boundary()

    def _on_boundary(self, now: float, event: Boundary) -> None:
        self._at_boundary()

    def _at_boundary(self) -> None:
        applied = tuple(self._apply_arrived(fragment) for fragment in sorted(self._arrived))
        self._arrived.clear()
        self._take_snapshots()
        for fragment in sorted(self._owed):
            if self.fragments[fragment].version >= self._owed[fragment]:
                del self._owed[fragment]  # the round closed without us and its result is here
            elif fragment in self._marks:
                self._answer(self._owed.pop(fragment), fragment)
        if self.incarnation:
            self._report(applied)

    def _apply_arrived(self, fragment: Fragment) -> Applied:
        version, state = self._arrived[fragment], self.fragments[fragment]
        sent_round, mark = self._sent.pop(fragment, (Round(-1), None))
        mode = self._apply
        if state.version == NEVER or (mode is ApplyMode.CARRY and (mark is None or int(sent_round) != version)):
            mode = ApplyMode.OVERWRITE  # nothing of ours is in flight
        if fragment in self._of_another_life:
            mode = ApplyMode.OVERWRITE  # a new life begins at its bases, or at what is newer
            self._of_another_life.discard(fragment)
        kept_steps, kept_tokens = 0, 0
        if mode is ApplyMode.CARRY and mark is not None:
            kept_steps, kept_tokens = state.steps - mark.steps, state.tokens - mark.tokens
        state.version, state.steps, state.tokens = version, kept_steps, kept_tokens
        self._marks.pop(fragment, None)
        self._out.append(Apply(fragment=fragment, version=version, mode=mode, blend_alpha=self._alpha))
        return Applied(fragment=fragment, version=version, at_tokens=self.tokens, kept_tokens=kept_tokens)

    def _take_snapshots(self) -> None:
        """Copy what can be asked for next: the fragments of W rounds, and those already owed.

        Rounds come in order, so the next one asked is the one after the last that asked or closed. Counted from the
        own clock instead, a learner whose steps outpace the syncer would keep snapshots of rounds far in the future
        and have none of what it is asked for.
        """
        self._marks.clear()
        if self._schedule is None:
            return
        first = Round(max(self._last_asked, self.newest_round) + 1)
        likely = set(self._schedule.due_within(first, self._window)) | set(self._owed)
        # A snapshot without a base, or without a step since, carries no work: answering it would be refused.
        useful = tuple(sorted(p for p in likely if self.fragments[p].steps > 0 and self.fragments[p].version != NEVER))
        for p in useful:
            state = self.fragments[p]
            self._marks[p] = _Mark(
                base_version=state.version,
                steps=state.steps,
                tokens=state.tokens,
                total_tokens=self.tokens,
                cursor=self.cursor,
            )
        if useful:
            self._out.append(TakeSnapshot(fragments=useful))

    def _to_boundary_s(self, now: float) -> float:
        """How far the next boundary is, if this step takes as long as the mean of the last ones."""
        usual_s = self._usual_step_s or 0.0
        return usual_s if self._started_at is None else max(0.0, self._started_at + usual_s - now)

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _want(self, fragment: Fragment, version: Version) -> None:
        """Pull a version unless it, or a newer one, is held, here, or already on its way."""
        if not 0 <= fragment < len(self.fragments):
            return
        have = max(
            self.fragments[fragment].version,
            self._arrived.get(fragment, NEVER),
            self._wanted.get(fragment, NEVER),
        )
        if version > have:
            self._wanted[fragment] = version
            self._out.append(Pull(fragment=fragment, version=version))

    def _answer(self, round: Round, fragment: Fragment) -> None:
        mark = self._marks[fragment]
        self._sent[fragment] = (round, mark)
        self._out.append(
            Answer(
                learner=self.learner,
                incarnation=self.incarnation,
                epoch=self.epoch,
                round=round,
                fragment=fragment,
                base_version=mark.base_version,
                steps=mark.steps,
                tokens=mark.tokens,
                total_tokens=mark.total_tokens,
                cursor=mark.cursor,
                layout_hash=self.layout_hash,
            )
        )

    def _report(self, applied: tuple[Applied, ...]) -> None:
        self._out.append(
            Progress(
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


# By name, so that a subclass may do one thing differently.
_HANDLERS: dict[type, str] = {
    Welcome: "_on_welcome",
    Refusal: "_on_refusal",
    Begin: "_on_begin",
    Ask: "_on_ask",
    Rejection: "_on_rejection",
    Announcement: "_on_announcement",
    LinkDown: "_on_link_down",
    Arrived: "_on_arrived",
    StepStarted: "_on_step_started",
    StepDone: "_on_step_done",
    Boundary: "_on_boundary",
}
