"""A learner's process: the shipping core in a loop made of planned boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gruppetto.chaos.contact import Contact
from gruppetto.chaos.cut import Part
from gruppetto.chaos.fences import nothing_changes_in_learner, says_nothing
from gruppetto.chaos.giving import Giver, Search
from gruppetto.chaos.holdings import Holdings
from gruppetto.chaos.network import Road, Wire
from gruppetto.chaos.plan import LearnerPlan
from gruppetto.chaos.record import Checkpoint
from gruppetto.chaos.transfers import Transfers
from gruppetto.chaos.truth import Batch, Content
from gruppetto.protocol.actions import (
    Apply,
    DropRests,
    KeepRest,
    LearnerAction,
    Pull,
    Recover,
    SaveState,
    Seed,
    TakeSnapshot,
)
from gruppetto.protocol.events import (
    Boundary,
    LearnerEvent,
    Leaving,
    Recovered,
    StateSaved,
    StepDone,
    StepStarted,
)
from gruppetto.protocol.messages import Answer, Deferred, Marked, Progress, Refusal
from gruppetto.protocol.units import NEVER, Fragment, LearnerId
from gruppetto.runtime.wire import Frame, WelcomeFrame

if TYPE_CHECKING:
    from gruppetto.chaos.world import World

__all__ = ["LearnerProcess"]

FINAL_WEIGHTS_S = 10.0
"""How long a finished learner waits for the last weights."""
PARTING_S = 3.0
"""How long one that has had notice may take to give what it has."""
POLL_S = 0.1
"""Between two looks at what is waited for."""
PATIENCE_S = 1.0
"""How long one that has run ahead waits for a round, while things go wrong. Afterwards nobody gives up."""
SAVING_S = 1.5
"""How long it takes at most to write a part of a checkpoint; training goes on meanwhile."""


class LearnerProcess:
    """One life of one learner. ``checkpoint``: what it begins from; ``same_life``: with the whole run. ``own``: what it
    has saved for the worst case."""

    def __init__(
        self,
        plan: LearnerPlan,
        world: World,
        *,
        name: str,
        session: str,
        checkpoint: Checkpoint | None = None,
        same_life: bool = False,
        own: Checkpoint | None = None,
    ) -> None:
        self.plan, self.world, self.name = plan, world, LearnerId(name)
        self.core = world.make_learner(
            self.name,
            session=session,
            layout_hash=world.layout_hash,
            recovers=plan.recovers,
            donates_at=session if plan.donates else "",
        )
        self.checkpoint: Checkpoint | None = None
        self.road: Road = world.roads[plan.name]
        self.alive, self.paused, self.left = True, False, False
        self.parting = False
        """It has had notice: it makes its last step, or gives what it has."""
        self.astray_until = 0
        """It has survived that the run went back: until a later epoch welcomes it, it is of another history."""
        self.begun = False
        """Its first step has begun: from now on it never waits."""
        self.stepping = False
        self.held = False
        """It has run too far ahead, and waits."""
        self._deaf_since_round = -1
        self.trained = 0
        """Tokens."""
        self.refusal: Refusal | None = None
        self.welcomed_at = 0
        """The newest round of which a Welcome has told it."""
        self.sick_until = 0.0
        """Its contributions hold NaN until then."""
        self.huge_until = self.backward_until = 0.0
        """They are too long until then; they point back."""
        self.record = world.records[plan.name]
        self._rng = random.Random(f"{world.plan.seed} {session}")
        self._held: list[Callable[[], None]] = []
        self._then: Callable[[], object] = _nothing_follows
        self.holdings = Holdings(self, checkpoint, same_life=same_life)
        self.contact = Contact(self, rng=self._rng, feed=self._feed)
        self.transfers = Transfers(self, feed=self._feed, give_up=self.contact.give_up)
        self.backlog = self.transfers.backlog
        self.giver = Giver(self)
        self.search: Search | None = None
        self._own = own
        if checkpoint is not None:
            self.core.restore(checkpoint.state, same_life=same_life)

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def present(self) -> bool:
        """It lives, has not left, and nobody has turned it away."""
        return self.alive and not self.left and self.refusal is None

    @property
    def bases(self) -> Mapping[Fragment, Content]:
        return self.holdings.bases

    @property
    def wire(self) -> Wire | None:
        """Its control connection, while it has one."""
        return self.contact.wire

    def start(self) -> None:
        self.contact.dial()
        self.contact.beat()

    def kill(self, *, silent: bool) -> None:
        """kill −9; ``silent``: its machine goes with it, and no connection is closed."""
        self.alive = False
        if self.wire is not None:
            if silent:
                self.wire.go_deaf()
            else:
                self.wire.hang_up()

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        """SIGCONT: what has come meanwhile is found waiting."""
        self.paused = False
        held, self._held = self._held, []
        for do in held:
            self.awake(do)

    def leave(self, *, on_notice: bool = False, then: Callable[[], object] | None = None) -> None:
        """Say goodbye, if there is anybody to hear it; ``on_notice``: give all that there is to give before.

        ``then`` comes once it has left.
        """
        self._then = then or self._then
        if on_notice and self.present and self.begun:
            self.parting = True
        elif self.present:
            self.left, self.parting = True, False
            if self.wire is not None and self.core.linked:
                self.transfers.send_frames(self.wire)
                self.wire.up(self.core.goodbye())
                self.wire.hang_up()
            self._then()

    def awake(self, do: Callable[[], None]) -> None:
        """What a process does, it does while it runs."""
        if not self.alive:
            return
        if self.paused:
            self._held.append(do)
        else:
            do()

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.world.engine.after(delay_s, lambda: self.awake(do))

    def hear_ghost(self, frame: Frame) -> None:
        """A message of another life arrives."""
        if self.present and not self.paused and not isinstance(frame, WelcomeFrame | Refusal):
            with nothing_changes_in_learner(self, frame):
                actions = self.core.step(self.world.engine.now, frame)  # type: ignore[arg-type]
                says_nothing(frame, actions)

    def stir(self) -> None:
        """The road is free again."""
        self.awake(self.transfers.pump)

    # ── the core ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _feed(self, event: LearnerEvent) -> None:
        now = self.world.engine.now
        actions = self.core.step(now, event)
        self.world.record(now, self.name, event, actions)
        for action in actions:
            self._perform(action)
        self.transfers.pump()
        if not self.begun:
            # Before training starts, nothing forbids touching the parameters at once.
            if self.core.wants_boundary:
                self._feed(Boundary())
            elif self.core.ready and self.core.linked:
                self.begun = True
                self.world.watch.begins(self)
                self._start_step()

    def _perform(self, action: LearnerAction) -> None:
        match action:
            case Progress():
                self.backlog.report(action)
            case Answer():
                self.backlog.offer(self.holdings.offer(action))
            case Deferred():
                self.backlog.defer(action)
            case Marked():
                self.backlog.mark(action)
            case SaveState():
                self._save_part(action)
            case Pull():
                self.backlog.want(action.fragment, action.version)
            case Seed():
                self.transfers.seed_wanted = True
            case Recover():
                self.search = Search(self, action, self._own)
                self.search.begin()
            case Apply():
                self.holdings.apply(action)
            case KeepRest():
                self.holdings.keep_rest(action)
            case DropRests():
                self.holdings.drop_rests()
            case TakeSnapshot():
                self.holdings.take_snapshots(action.fragments)
            case _:
                raise AssertionError(action)

    # ── training ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_step(self) -> None:
        """One step after another, for as long as the process lives: nothing here waits for anybody, unless told to."""
        if self.left or not self.core.begun:
            return
        if self.core.finished and not self.world.goes_on_elsewhere:
            self._finish(self.world.engine.now + FINAL_WEIGHTS_S)
            return
        if self.parting:
            self._feed(Leaving())
            self._part(self.world.engine.now + PARTING_S)
            return
        most = self.plan.max_run_ahead
        if self.core.finished:
            most = None  # beyond the end of this shard the others set the pace
        if most is not None and self.core.is_too_far(most) and self._deaf_since_round != self.core.newest_round:
            self.held = True
            self._hold(most, self.world.engine.now + PATIENCE_S)
            return
        self.stepping = True
        stamp = 1 + max(self.core.clock, self.core.newest_round)
        self._feed(StepStarted())
        batch = Batch(self.core.slot, self.core.cursor, self.plan.tokens_per_step)
        self.later(self.plan.pace.next_step_s(self._rng), lambda: self._finish_step(batch, stamp))

    def _hold(self, most: int, deadline: float) -> None:
        """Until rounds have closed and their weights have come, or it is to leave."""
        if self.core.wants_boundary:
            self._feed(Boundary())
        core, now = self.core, self.world.engine.now
        behind = core.is_too_far(most) or self.backlog.downloads
        gives_up = now >= deadline and now < self.world.plan.calm_at_s
        if behind and not (gives_up or self.left or self.parting or core.finished):
            self.later(POLL_S, lambda: self._hold(most, deadline))
            return
        self._deaf_since_round = core.newest_round if gives_up else -1
        self.held = False
        self._start_step()

    def _finish_step(self, batch: Batch, stamp: int) -> None:
        self.stepping = False
        self.trained += batch.tokens
        self.holdings.trained(batch)
        self._feed(StepDone(tokens=batch.tokens, cursor=self.core.cursor + 1))
        self.world.watch.step_done(self, stamp)
        if self.core.steps % self.plan.checkpoint_every == 0 and self.core.synchronised:
            self.checkpoint = self.holdings.saved(self.core.snapshot())
        self.giver.at_boundary()
        self._start_step()

    def _save_part(self, action: SaveState) -> None:
        """Copied now, written in the background."""
        part = Part(plan=self.plan.name, checkpoint=self.holdings.saved(action.state))

        def written() -> None:
            self.world.parts[action.mark, self.name, action.state.incarnation] = part
            self._feed(StateSaved(mark=action.mark, ok=True, text=action.mark))

        self.later(self._rng.uniform(0.0, SAVING_S), written)

    def _part(self, deadline: float) -> None:
        """Until everything is given, or there is no time left for it."""
        if self.parting and self.core.wants_boundary:
            self._feed(Boundary())
        gives = self.backlog.uploads or self.core.gives_more
        if self.parting and gives and self.world.engine.now < deadline:
            self.later(POLL_S, lambda: self._part(deadline))
            return
        if self.parting and self.world.engine.now < deadline:
            self.world.watch.parts(self)
        self.leave()

    def _finish(self, deadline: float) -> None:
        """The run is over: take the last weights, say goodbye."""
        if self.core.linked and self.backlog.downloads and self.world.engine.now < deadline:
            self.later(POLL_S, lambda: self._finish(deadline))
            return
        self._feed(Boundary())
        self.world.watch.ends(self)
        self.leave(then=lambda: self.world.launcher.came_to_the_end(self))

    def recovered(self, found: Mapping[Fragment, Content]) -> None:
        """The search for a state is over; these are the bases that it brought."""
        if not self.core.search_stands:
            found = {}
        self.holdings.found(found)
        fragments = range(self.world.setting.num_fragments)
        versions = tuple(found[p].version if p in found else NEVER for p in map(Fragment, fragments))
        self._feed(Recovered(versions=versions))


def _nothing_follows() -> None:
    pass
