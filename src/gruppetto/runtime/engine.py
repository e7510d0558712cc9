"""One run at work: the core, and everything that its decisions set in motion.

::

    events ──▶ feed ──▶ SyncerCore ──▶ perform ──▶ Send, Publish          to the switchboard
                 ▲                        │
                 └───── completions ──────┴──────▶ Fold, TakeOuterStep     to the merge worker
                                          └──────▶ Persist                 to the disk worker

The order rule of :mod:`gruppetto.protocol.actions` holds because each step is started only by the action that the core
gives after the completion of the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from gruppetto.errors import RunFailed, SteppedDown
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.deal import offsets_of, part_of
from gruppetto.numerics.downlink import DOWNLINKS, Kept
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.layout import Layout
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.actions import (
    Alarm,
    AlarmOver,
    Checkpoint,
    CheckpointClosed,
    CheckpointRefused,
    Drop,
    Fold,
    MemberChanged,
    Persist,
    Publish,
    QuorumMet,
    RoundClosed,
    Send,
    SyncerAction,
    TakeOuterStep,
)
from gruppetto.protocol.events import (
    Folded,
    OuterStepped,
    Persisted,
    PersistFailed,
    Published,
    Settle,
    Stop,
    SyncerEvent,
    Tick,
)
from gruppetto.protocol.messages import Answer, Refusal, RefusalReason, Welcome
from gruppetto.protocol.round import Phase
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import UNBORN, Fragment, Version
from gruppetto.runtime.assembly import Assemblies
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.runtime.driver import Driver
from gruppetto.runtime.engine_notes import Notes
from gruppetto.runtime.health import Observer
from gruppetto.runtime.intake import Body, Intake
from gruppetto.runtime.parameters import Parameters, StepReport
from gruppetto.runtime.run_checkpoint import RunCheckpoints
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shared_memory import SharedMemory
from gruppetto.runtime.store import Store
from gruppetto.runtime.switchboard import Switchboard
from gruppetto.runtime.wire import CloseCode, HelloFrame, WelcomeFrame
from gruppetto.runtime.worker import Worker
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import core_and_header

__all__ = ["Engine", "is_older"]

_log = logging.getLogger("gruppetto.syncer")

SETTLE_TRIES = 3
"""How often the books of a finished run are tried to be made durable. Its weights are already."""

SEEDS_A_TIME = 2
"""Fragments whose initial weights may come in pieces at a time: as many as one rank uploads."""


class Engine:
    """Made as soon as the layout is known: from the first learner, or from the store."""

    def __init__(
        self,
        layout: Layout,
        protocol: ProtocolSetting,
        setting: SyncerSetting,
        outer: OuterSetting,
        *,
        store: Store,
        clock: Clock,
        trace: TraceWriter,
        merger: Worker,
        disk: Worker,
        seen: Observer,
        complaints: Complaints,
        on_change: Callable[[], None],
        saved: Sequence[tuple[Fragment, Version, Float32, Kept]] = (),
        memory: SharedMemory | None = None,
    ) -> None:
        """``saved``: the values of the last life, which ``store.state`` belongs to. ``memory``: for published ones."""
        self.layout, self.setting, self.seen = layout, setting, seen
        self._complaints = complaints
        self._store, self._clock, self._trace = store, clock, trace
        self._merger, self._disk, self._on_change = merger, disk, on_change
        self.over = False
        """The run is finished and put away, or it has failed."""
        self.failure: RunFailed | SteppedDown | None = None
        self.seeder: tuple[str, int] | None = None
        """(learner, incarnation) that was asked for the initial weights."""
        self._settle_at: float | None = None
        self._settle_tries = 0
        self._at_the_door: Body | None = None
        self._guest: HelloFrame | None = None
        self._closed = False
        whole = cut(layout, protocol.num_fragments, setting.fragmenter, setting.merge)
        parts = part_of(whole, setting.shard)
        self.offsets = offsets_of(whole, setting.shard, protocol.sync_period)
        """Of the schedule, where this is a shard."""
        if parts.notice and store.state is None:  # an earlier life has said so
            _log.info("%s", parts.notice)
        self.fragments_asked = protocol.num_fragments
        self.protocol = replace(protocol, num_fragments=parts.num_fragments)
        self.parameters = Parameters(
            parts,
            rules=merge_rules(layout, setting.merge),
            outer=outer,
            downlink=DOWNLINKS[setting.downlink],
            allocate=None if memory is None else memory.allocate,
        )
        self.parameters.check_gathering(self.protocol.slots)
        state = store.state
        if state is not None:
            for p, version, theta, outer_state in saved:
                self.parameters.restore(p, version, theta, outer_state)
            if saved and not state.value_norms:
                # Written by a version that took none.
                state = replace(state, value_norms=self.parameters.value_norms())
        largest_numel = max(spec.numel for spec in parts.fragments)
        self.contributions = Intake(CODECS[setting.uplink], largest_numel, setting.max_bodies)
        self.seeds = Intake(CODECS["fp32"], largest_numel, 1)
        self.halves: Assemblies[Answer] = Assemblies.of(CODECS[setting.uplink], largest_numel, setting.max_bodies)
        """Contributions of learners of many ranks, of which some pieces are here."""
        self.seed_halves: Assemblies[tuple[str, int, Fragment]] = Assemblies(
            Intake(CODECS["fp32"], largest_numel, SEEDS_A_TIME)
        )
        self.switchboard = Switchboard(self._dress, complaints)
        self.core, made_of = core_and_header(
            SyncerCore,
            self.protocol,
            run_id=store.run_id,
            layout_hash=layout.layout_hash,
            epoch=store.epoch,
            state=state,
            unseen=store.unseen,
            damaged=store.damaged,
            offsets=self.offsets,
        )
        self.checkpoints = RunCheckpoints(
            store, disk, rounds=protocol.rounds, kept=setting.checkpoints_kept, feed=self.feed, fail=self._fail
        )
        self._driver = Driver(self.core, who="syncer", clock=clock, trace=trace, perform=self._perform)
        self.notes = Notes(trace, self._driver, self.core, self.seen)
        self.notes.header(made_of, self.parameters, setting)

    # ── the doors ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def deserted(self) -> bool:
        """Nobody is connected and nobody has seeded: nothing here binds the next learner, not even the layout."""
        return self.core.phase is Phase.SEEDING and not self.core.members.connected()

    @property
    def wake_at(self) -> float | None:
        return min((t for t in (self.core.wake_at, self._settle_at) if t is not None), default=None)

    def tick(self) -> None:
        """Time has passed."""
        if self._settle_at is not None and self._clock.now() >= self._settle_at:
            self._settle()
        else:
            self.feed(Tick())

    def feed(self, event: SyncerEvent) -> None:
        """Take in an event and carry out what comes of it."""
        if self.failure is not None or self._closed:
            return
        try:
            self._driver.feed(event)
            if not self._driver.busy:
                self._look_for_the_end()
        except Exception as error:
            self._fail(error)
        self._on_change()

    def stop(self) -> None:
        """Make a last commit; :attr:`stopped` when it is done."""
        self.feed(Stop())

    @property
    def stopped(self) -> bool:
        """All that was published is durable, and nothing more will be."""
        return self.core.stopped

    def close(self) -> None:
        """Nothing is decided any more: what workers and connections still report comes too late."""
        self._closed = True

    def greet(self, connection: Connection, frame: HelloFrame) -> None:
        """A learner introduces itself on a new connection."""
        self.switchboard.plug_in(connection)
        self._guest = frame
        self.feed(frame.hello)
        self._guest = None

    def wants(self, answer: Answer) -> bool:
        """The contribution would be merged if its body were here, whole and finite."""
        return self.core.judge(answer) is None

    def superseded(self, answer: Answer) -> bool:
        """Pieces of a newer contribution of the same learner to the same round and fragment are here."""
        return any(is_older(answer, than=half) for half in self.halves)

    def drop_halves(self) -> None:
        """Give up what will not be merged, however many pieces of it come."""
        self.halves.drop(lambda half: not self.wants(half))
        self.seed_halves.drop(lambda half: self.seeder != half[:2])

    def turn_away(self, answer: Answer) -> None:
        """Let the core refuse a contribution that it does not want, whose body nobody has read."""
        assert not self.wants(answer)
        self.feed(answer)

    def decide(self, answer: Answer, body: Body) -> bool:
        """Let the core decide on a contribution whose body is here; whether it is merged."""
        assert self._at_the_door is None
        self._at_the_door = body
        seen = body.inspection
        self.feed(replace(answer, finite=seen.finite, norms=tuple(seen.norm.tolist())))
        turned_away, self._at_the_door = self._at_the_door is not None, None
        if turned_away:
            body.release()
        return not turned_away

    # ── carrying out ─────────────────────────────────────────────────────────────────────────────────────────────

    def _perform(self, action: SyncerAction) -> None:
        self.seen.saw(self._driver.now, action)
        match action:
            case Send():
                self._send(action)
            case Fold():
                self._fold(action)
            case Drop():
                kind = (action.learner, action.reason.value)
                text = f"{action.learner}: fragment {action.fragment} dropped: {action.reason.value}"
                self._complaints.note(kind, text, logging.INFO)
            case TakeOuterStep():
                self._take_outer_step(action)
            case Persist():
                self._persist(action)
            case Publish():
                self._publish(action)
            case QuorumMet():
                pass
            case RoundClosed():
                _log.debug("round %d: %s; %d learners", action.round, action.why, len(action.participants))
            case MemberChanged():
                _log.info("%s is %s: %s", action.learner, action.state, action.why)
            case Alarm():
                _log.warning("%s: %s", action.kind.value, action.text)
            case AlarmOver():
                _log.info("%s: over", action.kind.value)
            case Checkpoint() | CheckpointClosed() | CheckpointRefused():
                self.checkpoints.perform(action)
            case _:
                assert_never(action)

    def _send(self, action: Send) -> None:
        message = action.message
        match message:
            case Welcome(seed=True):
                self.seeder = (action.to, message.incarnation)
                self.parameters.forget_seed()
            case Welcome(incarnation=life) if life == UNBORN:
                _log.info("%s comes after the last round; it gets the last weights", action.to)
            case Refusal(reason=RefusalReason.LAYOUT) if self._guest is not None:
                difference = self._guest.difference_from(self.layout)
                message = replace(message, text=f"{message.text}: {difference}" if difference else message.text)
            case _:
                pass
        self.switchboard.send(action.to, action.session, message)

    def _fold(self, action: Fold) -> None:
        body, self._at_the_door = self._at_the_door, None
        assert body is not None, "a contribution is decided on with its bytes at hand"

        def done(cosine: float | None) -> None:
            body.release()
            self.feed(Folded(round=action.round, fragment=action.fragment, learner=action.learner, cosine=cosine))

        def fold() -> float | None:
            return self.parameters.fold(action.fragment, body, body.codec, action.weight, action.caps)

        self._merger.submit(fold, done, self._fail)

    def _take_outer_step(self, action: TakeOuterStep) -> None:
        def done(report: StepReport) -> None:
            self.notes.outer_step(action.round, report)
            self.feed(OuterStepped(round=action.round, zero=report.zero, not_finite=report.not_finite))

        self._merger.submit(lambda: self.parameters.outer_step(action.fragments, action.round), done, self._fail)

    def _persist(self, action: Persist) -> None:
        values = self.parameters.pending(action.fragments)

        def done(_: None) -> None:
            self.feed(Persisted(round=action.round))
            if self._settle_tries:
                self._put_away()

        def failed(error: Exception) -> None:
            if isinstance(error, SteppedDown):
                self.step_down(error)
                return
            if not isinstance(error, OSError):
                self._fail(error)
                return
            self.feed(PersistFailed(round=action.round, why=error.strerror or str(error)))
            if self._settle_tries:
                self._settle_again(error)

        def commit() -> None:
            self._store.commit(action.state, values, self.layout, sweeps=False)

        self._disk.submit(commit, done, failed)
        # Behind it, while others hear of it already: removing a large file takes as long as writing a small one.
        self._disk.submit(self._store.sweep, lambda _: None, self._fail)

    def _publish(self, action: Publish) -> None:
        try:
            self._store.check_authority()
        except SteppedDown as error:
            self.step_down(error)
            return
        self.parameters.publish(action.message.versions)
        self.switchboard.announce(action.to, action.message)
        self.notes.traffic()
        self.feed(Published(round=action.message.round))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _look_for_the_end(self) -> None:
        if not self.core.is_over or self._settle_tries:
            return
        if not self.core.members.connected():
            self._settle()
        elif self._settle_at is None:
            self._settle_at = self._clock.now() + self.setting.goodbye_s

    def _settle(self) -> None:
        """Everybody has said goodbye, or has had the time to."""
        self._settle_at = None
        self._settle_tries += 1
        self.feed(Settle())

    def _settle_again(self, error: OSError) -> None:
        _log.warning("the books of the finished run could not be made durable: %s", error)
        if self._settle_tries < SETTLE_TRIES:
            self._settle()
        else:
            self._put_away()

    def _put_away(self) -> None:
        self.notes.ledger()
        self.over = True
        self._on_change()

    def step_down(self, error: SteppedDown) -> None:
        """Another life has the authority. Nothing more is decided, said or recorded here."""
        if self.failure is None:
            _log.error("%s", error)
            self._trace.abandon(str(error))
            self.failure, self.over = error, True
            self.switchboard.close_all(CloseCode.GOING_AWAY, "another syncer serves this run")
            self._on_change()

    def _fail(self, error: Exception) -> None:
        """A mistake of ours. Nothing more is decided; what is durable stays."""
        _log.error("the syncer stops", exc_info=error)
        self.failure = RunFailed(f"the syncer stopped: {type(error).__name__}: {error}")
        self.failure.__cause__ = error
        self.over = True
        self._on_change()

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _dress(self, welcome: Welcome) -> WelcomeFrame:
        return WelcomeFrame(
            welcome=welcome,
            fragmenter=self.setting.fragmenter,
            fragments_asked=self.fragments_asked,
            merge=self.setting.merge,
            uplink=self.setting.uplink,
            downlink=self.setting.downlink,
            layout_hash=self.layout.layout_hash,
            fragmentation_hash=self.parameters.parts.fragmentation_hash,
            liveness_s=self.protocol.liveness_s,
            run={**self.setting.run, "num_slots": self.protocol.slots},
            shard=str(self.setting.shard),
        )


def is_older(answer: Answer, *, than: Answer) -> bool:
    """Both are of one learner for one place in one round, and it has made the other one later."""
    one, other = answer, than
    return (one.learner, one.round, one.fragment) == (other.learner, other.round, other.fragment) and (
        _order(one) < _order(other)
    )


def _order(answer: Answer) -> tuple[int, ...]:
    return answer.epoch, answer.incarnation, answer.total_tokens, answer.base_version, answer.steps
