"""A learner's core: it never waits, neither for other learners nor for the syncer (section 2).

The shell calls :meth:`LearnerCore.step` from its training loop (``StepStarted``, ``StepDone``) and from its network
side (all other events), one call at a time. At a boundary the actions come in the order in which they have to be
carried out: apply what has arrived, take the snapshots, answer what is owed, report progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.protocol.actions import Apply, DropRests, LearnerAction, Pull, Recover, SaveState, Seed, TakeSnapshot
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
from gruppetto.protocol.maker import maker
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Applied,
    ApplyMode,
    Ask,
    Begin,
    Clipping,
    Deferred,
    Goodbye,
    Hello,
    Marked,
    Marker,
    Progress,
    Refusal,
    Rejection,
    Welcome,
)
from gruppetto.protocol.rests import Rests
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import NEVER, NO_EPOCH, UNBORN, Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = ["FragmentState", "LearnerCore", "LearnerState"]


STEP_EMA = 0.1
"""Weight of the newest step in the mean step time with which the next boundary is predicted."""

new_applied, new_answer, new_progress = maker(Applied), maker(Answer), maker(Progress)
new_apply, new_pull, new_snapshot = maker(Apply), maker(Pull), maker(TakeSnapshot)


@dataclass(slots=True, kw_only=True)
class FragmentState:
    """What a learner knows of one fragment."""

    version: Version = NEVER
    """The version of its base."""
    from_steps: int = 0
    """The learner's total of steps from which on they count for this fragment: when it was last received. So c_steps,
    the steps since, grow by themselves."""
    from_tokens: int = 0
    """The same of c_tokens."""


@dataclass(slots=True)
class _Moment:
    """The totals at a boundary: with those from which on they count, they are the counters of every snapshot that was
    taken there. Nobody changes them; frozen, they would take thrice as long to make."""

    steps: int
    tokens: int
    cursor: int


NEVER_SENT: tuple[int, _Moment | None] = (-1, None)


class LearnerCore:
    """Decides what a learner snapshots, answers, pulls and applies.

    ``step`` takes one event at time ``now`` (seconds, never decreasing). Deterministic, no tensors. ``clock`` is
    the Lamport stamp of the step in progress or just done; ``newest_round`` the newest round it has observed, which
    also indexes learning-rate schedules. ``recovers``: where a run is under way already, look for a state to begin from
    before weights are pulled. ``donates_at``: where others find this learner's own state.
    """

    def __init__(
        self, learner: LearnerId, *, session: str, layout_hash: str, recovers: bool = False, donates_at: str = ""
    ) -> None:
        self.learner, self.session, self.layout_hash = learner, session, layout_hash
        self.recovers, self.recovering = recovers, False
        """A state is to be looked for at the next Welcome; it is being looked for."""
        self.donates_at = donates_at
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
        self.leaving = False
        """It has had notice, and gives what it has."""
        self.refusal: Refusal | None = None
        self.rejections: dict[str, int] = {}
        self.clippings: dict[str, int] = {}
        self._schedule: Schedule | None = None
        self._window, self._apply, self._alpha = 0, ApplyMode.OVERWRITE, 0.0
        self.step_s = 0.0
        """Seconds that the last step took."""
        self._usual_step_s: float | None = None
        self._started_at: float | None = None
        self._arrived: dict[Fragment, Version] = {}
        self._wanted: dict[Fragment, Version] = {}
        self._snapshots: set[Fragment] = set()
        """At hand, all of one boundary; a fragment that is applied has none until the next."""
        self._taken_at = _Moment(0, 0, 0)
        self._sent: dict[Fragment, tuple[Round, _Moment]] = {}
        """For which round, and of which moment, it has answered since it received the fragment."""
        self._rests, self._has_rests = Rests(), False
        """Contributions whose rest may be kept; some was, or came with a checkpoint."""
        self._owed: dict[Fragment, Round] = {}
        self._last_asked = Round(0)
        self._of_another_life: set[Fragment] = set()
        self._held_back: dict[Fragment, Version] = {}
        """What is to be pulled once the search for a state has ended, unless it was found."""
        self._marker: Marker | None = None
        """A checkpoint's cut, to be made at the next boundary."""
        self._resumed = False
        """It goes on from a checkpoint in the life that it was saved in, and has not been welcomed since."""
        self._continues, self._saved_in, self._searching_in = "", NO_EPOCH, NO_EPOCH
        self._wants_snapshots = False
        """It has been resumed after a step: what that step led to may be asked for before the next one."""
        self._out: list[LearnerAction] = []

    # ── the doors ────────────────────────────────────────────────────────────────────────────────────────────────

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
    def published(self) -> tuple[Version, ...]:
        """The newest versions of which the syncer has told, while it looks for a state to begin from."""
        return tuple(self._held_back.get(Fragment(p), NEVER) for p in range(len(self.fragments)))

    @property
    def held(self) -> tuple[Version, ...]:
        """The version of every base."""
        return tuple(f.version for f in self.fragments)

    @property
    def has_arrived(self) -> bool:
        """Something is to be applied at the next boundary."""
        return bool(self._due(self.newest_round))

    @property
    def wants_boundary(self) -> bool:
        """There is something to do at the next boundary; whoever is not training may make one at once."""
        return self.has_arrived or self._marker is not None or self._wants_snapshots

    def c_steps(self, fragment: Fragment) -> int:
        """Inner steps since the fragment was last received."""
        return self.steps - self.fragments[fragment].from_steps

    def c_tokens(self, fragment: Fragment) -> int:
        """Tokens since the fragment was last received."""
        return self.tokens - self.fragments[fragment].from_tokens

    @property
    def run_ahead(self) -> int:
        """How many steps it is past the newest round it has observed."""
        return max(0, self.clock - self.newest_round)

    @property
    def work(self) -> int:
        """Fragment-tokens since each fragment was last received, but for contributions that are on their way."""
        away = {p: then.tokens for p, (round, then) in self._sent.items() if round > self.newest_round}
        return sum(self.tokens - away.get(Fragment(p), f.from_tokens) for p, f in enumerate(self.fragments))

    def knows_newer(self, said: Welcome | Refusal) -> bool:
        """A later life of the syncer has spoken to this learner: whoever says this has lost his authority."""
        return 0 < said.epoch < self.epoch

    def is_newborn(self, welcome: Welcome) -> bool:
        """``welcome`` begins a new life. Who goes on from a part is told so: its number alone may be a coincidence."""
        return welcome.incarnation != self.incarnation or (self._resumed and not welcome.goes_on)

    def still_stands(self, saved_in: Epoch) -> bool:
        """Bases that were saved in that life of the syncer are what their versions say. After another life began they
        need not be: the run may have been resumed from an earlier moment, and have made these rounds anew."""
        return saved_in == self.epoch

    @property
    def search_stands(self) -> bool:
        """What the search brings is of this run: no other life of the syncer has begun since it did."""
        return self.still_stands(self._searching_in)

    def snapshot(self) -> LearnerState:
        """What a checkpoint must hold."""
        steps, tokens = self.steps, self.tokens
        return LearnerState(
            run_id=self.run_id,
            clock=self.clock,
            newest_round=self.newest_round,
            fragments=tuple((f.version, steps - f.from_steps, tokens - f.from_tokens) for f in self.fragments),
            steps=steps,
            tokens=tokens,
            cursor=self.cursor,
            session=self.session,
            incarnation=self.incarnation,
            slot=self.slot,
            epoch=self.epoch,
        )

    def restore(self, state: LearnerState, *, same_life: bool = False) -> None:
        """Go on from a checkpoint, before the first Welcome.

        Only what has changed since is pulled; every other base is applied again. The work since those bases belonged to
        an earlier life, whose account is closed: it leaves the model, and the counters start at zero.

        ``same_life``: the whole run goes on from one moment, the syncer too. It awaits this life and has kept its
        account, so counters, data slot and work go on as if nothing had happened. If it does not (the run was not
        resumed, or another process was here before), this becomes a new life like any other.
        """
        assert not self.linked, "restore before connecting"
        self.run_id = state.run_id
        self.clock, self.newest_round = state.clock, state.newest_round
        self.cursor = state.cursor
        self.recovers = False  # this is what it begins from
        self._saved_in = state.epoch
        if not same_life:
            self.fragments = [FragmentState(version=version) for version, _, _ in state.fragments]
            return
        self._continues, self.incarnation, self.slot = state.session, state.incarnation, state.slot
        self.steps, self.tokens = state.steps, state.tokens
        self.fragments = [
            FragmentState(version=v, from_steps=state.steps - steps, from_tokens=state.tokens - tokens)
            for v, steps, tokens in state.fragments
        ]
        self._resumed = self._has_rests = True

    # ── from the syncer ──────────────────────────────────────────────────────────────────────────────────────────

    def _on_welcome(self, now: float, welcome: Welcome) -> None:
        newborn = self.is_newborn(welcome)
        self.run_id, self.epoch, self.incarnation = welcome.run_id, welcome.epoch, welcome.incarnation
        self.rounds = welcome.rounds
        self._schedule = Schedule(
            num_fragments=welcome.num_fragments, sync_period=welcome.sync_period, offsets=welcome.offsets
        )
        self._window, self._apply, self._alpha = welcome.snapshot_window, welcome.apply, welcome.blend_alpha
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
        self.begun = self.begun or welcome.begun
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
            # At round 0 there is nothing that a fresh process does not have.
            self.recovers, self.recovering = False, welcome.round > 0
            if self.recovering:
                self._searching_in = self.epoch
                self._out.append(Recover(donors=welcome.donors, versions=welcome.versions))
        for p, version in enumerate(welcome.versions):
            self._want(Fragment(p), version)
        self._settle_rests(welcome.versions)
        if self.synchronised:
            self._report(self._bases_held() if resumed else ())
        if self.leaving:
            self._part(again=True)

    def _on_refusal(self, now: float, refusal: Refusal) -> None:
        self.linked, self.refusal = False, refusal

    def _on_begin(self, now: float, begin: Begin) -> None:
        if begin.epoch == self.epoch:
            self.begun = True

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
            if fragment in self._snapshots and not self._would_forget(fragment):
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

    def _on_announcement(self, now: float, news: Announcement) -> None:
        if news.epoch != self.epoch:
            return
        self.newest_round = max(self.newest_round, news.round)
        self.finished = self.finished or news.finished
        for fragment, version in news.versions:
            self._want(fragment, version)
        self._settle_rests()

    def _on_marker(self, now: float, marker: Marker) -> None:
        if marker.epoch == self.epoch and self.linked:
            self._marker = marker

    def _on_state_saved(self, now: float, event: StateSaved) -> None:
        self._answer_the_marker(event.mark, ok=event.ok, text=event.text)

    def _on_link_down(self, now: float, event: LinkDown) -> None:
        self.linked = False
        self._marker = None
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
        self._settle_rests()

    def _on_taken(self, now: float, event: Taken) -> None:
        if event.epoch == self.epoch and 0 <= event.fragment < len(self.fragments):
            self._rests.took(event)
            self._settle_rests()

    def _on_recovered(self, now: float, event: Recovered) -> None:
        if not self.recovering:
            return
        self.recovering = False
        needed, self._held_back = self._held_back, {}
        for p, version in enumerate(event.versions):
            # What the run has gone beyond is no base to begin from.
            if version >= needed.get(Fragment(p), NEVER):
                self._on_arrived(now, Arrived(fragment=Fragment(p), version=version))
        if self.linked:
            for fragment in sorted(needed):
                self._want(fragment, needed[fragment])

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

    def _on_leaving(self, now: float, event: Leaving) -> None:
        self.leaving = True
        self._at_boundary()
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
        for fragment in sorted(self._owed) if self._owed else ():
            if self.fragments[fragment].version >= self._owed[fragment]:
                del self._owed[fragment]  # the round closed without us and its result is here
            elif fragment in self._snapshots and not self._would_forget(fragment):
                self._answer(self._owed.pop(fragment), fragment)
        if self.incarnation:
            self._report(applied)

    def _settle_rests(self, versions: tuple[Version, ...] = ()) -> None:
        """Keep what is left of contributions that have counted; ``versions`` are published by a Welcome's word."""
        if self._rests.empty:
            return
        for p in self._rests.open():
            newest = versions[p] if versions else self._newest_heard_of(p)
            keep = self._rests.settle(p, newest=newest, closed=self.newest_round, epoch=self.epoch)
            if keep is not None:
                self._has_rests = True
                self._out.append(keep)

    def _newest_heard_of(self, fragment: Fragment) -> Version:
        """The newest version of which it knows that it is published."""
        here = max(self.fragments[fragment].version, self._arrived.get(fragment, NEVER))
        return max(here, self._wanted.get(fragment, NEVER), self._held_back.get(fragment, NEVER))

    def _would_forget(self, fragment: Fragment) -> bool:
        """Under ``carry`` the value on its way here is to keep what was done since the contribution that is in it; to
        offer another one meanwhile, on a base that is outdated, would take that memory's place."""
        if self._apply is not ApplyMode.CARRY:
            return False
        newest = max(self._wanted.get(fragment, NEVER), self._arrived.get(fragment, NEVER))
        return newest > self.fragments[fragment].version

    def _due(self, round: Round) -> list[Fragment]:
        """What has arrived and is not newer than ``round``; a base that is held already may be applied again anyhow."""
        arrived, fragments = self._arrived.items(), self.fragments
        return sorted([p for p, version in arrived if version <= round or version <= fragments[p].version])

    def _apply_up_to(self, round: Round) -> tuple[Applied, ...]:
        """Apply what has arrived, but for what is newer than ``round``."""
        if not self._arrived:
            return ()
        return tuple(map(self._apply_arrived, self._due(round)))

    def _save(self, marker: Marker) -> None:
        """The cut goes through here: everything up to the marker's round is applied, nothing newer is."""
        if self.synchronised:
            self._out.append(SaveState(mark=marker.mark, round=marker.round, state=self.snapshot(), kept=marker.kept))
        else:
            self._answer_the_marker(marker.mark, ok=False, text="it did not have all weights yet")

    def _apply_arrived(self, fragment: Fragment) -> Applied:
        version, state = self._arrived.pop(fragment), self.fragments[fragment]
        sent_round, then = self._sent.pop(fragment, NEVER_SENT)
        mode = self._apply
        if state.version == NEVER or (mode is ApplyMode.CARRY and (then is None or sent_round != version)):
            mode = ApplyMode.OVERWRITE  # nothing of ours is in flight
        if fragment in self._of_another_life:
            mode = ApplyMode.OVERWRITE  # a new life begins at its bases, or at what is newer
            self._of_another_life.discard(fragment)
        kept_steps, kept_tokens = 0, 0
        if mode is ApplyMode.CARRY and then is not None:
            kept_steps, kept_tokens = self.steps - then.steps, self.tokens - then.tokens
        state.version = version
        state.from_steps, state.from_tokens = self.steps - kept_steps, self.tokens - kept_tokens
        self._snapshots.discard(fragment)
        self._out.append(new_apply(fragment=fragment, version=version, mode=mode, blend_alpha=self._alpha))
        return new_applied(fragment=fragment, version=version, at_tokens=self.tokens, kept_tokens=kept_tokens)

    def _take_snapshots(self) -> None:
        """Copy what can be asked for next: the fragments of W rounds, and those already owed.

        Rounds come in order, so the next one asked is the one after the last that asked or closed. Counted from the
        own clock instead, a learner whose steps outpace the syncer would keep snapshots of rounds far in the future
        and have none of what it is asked for.
        """
        snapshots, fragments, steps = self._snapshots, self.fragments, self.steps
        snapshots.clear()
        if self._schedule is None:
            return
        likely = self._schedule.due_within(max(self._last_asked, self.newest_round) + 1, self._window)
        if self._owed:
            likely = tuple(sorted({*likely, *self._owed}))
        if self.leaving:
            likely = tuple(map(Fragment, range(len(fragments))))
        # A snapshot without a base, or without a step since, carries no work: answering it would be refused.
        useful = tuple([p for p in likely if fragments[p].from_steps < steps and fragments[p].version != NEVER])
        if useful:
            snapshots.update(useful)
            self._taken_at = _Moment(steps, self.tokens, self.cursor)
            self._out.append(new_snapshot(fragments=useful))

    def _part(self, *, again: bool) -> None:
        """Give the work of every fragment, each for the next round at which it is due, the soonest first.

        What is on its way stays there, unless the link has broken since (``again``); what has a newer version already
        would be refused.
        """
        if self._schedule is None:
            return
        gone = self._wanted.keys() | self._arrived.keys()
        if not again:
            gone |= {p for p, (round, _) in self._sent.items() if round > self.newest_round}
        rounds = ((self._schedule.next_due(p, self.newest_round), p) for p in self._snapshots - gone)
        for round, fragment in sorted(rounds):
            if self.rounds is None or round <= self.rounds:
                self._answer(round, fragment, parting=True)

    def _to_boundary_s(self, now: float) -> float:
        """How far the next boundary is, if this step takes as long as the mean of the last ones."""
        usual_s = self._usual_step_s or 0.0
        return usual_s if self._started_at is None else max(0.0, self._started_at + usual_s - now)

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _want(self, fragment: Fragment, version: Version) -> None:
        """Pull a version unless it, or a newer one, is held, here, or already on its way."""
        if not 0 <= fragment < len(self.fragments):
            return
        if self.recovering:
            self._held_back[fragment] = max(version, self._held_back.get(fragment, NEVER))
            return
        have = max(
            self.fragments[fragment].version,
            self._arrived.get(fragment, NEVER),
            self._wanted.get(fragment, NEVER),
        )
        if version > have:
            self._wanted[fragment] = version
            self._out.append(new_pull(fragment=fragment, version=version))

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

    def _answer_the_marker(self, mark: str, *, ok: bool, text: str) -> None:
        self._out.append(
            Marked(
                learner=self.learner, incarnation=self.incarnation, epoch=self.epoch, mark=mark, ok=ok, text=text[:1000]
            )
        )

    def _here(self, fragment: Fragment, held: Version) -> Version:
        """What is here and not announced yet counts too: it could be of a round that a resumed run has not made."""
        return held if held == NEVER else max(held, self._arrived.get(fragment, NEVER))

    def _bases_held(self) -> tuple[Applied, ...]:
        """All that it has applied, said again: the syncer's part of the cut is older than the learner's."""
        return tuple(
            Applied(fragment=Fragment(p), version=f.version, at_tokens=f.from_tokens)
            for p, f in enumerate(self.fragments)
        )

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


# By name, so that a subclass may do one thing differently.
_HANDLERS: dict[type, str] = {
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
