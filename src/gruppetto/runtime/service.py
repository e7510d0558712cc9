"""The syncer without a network: what a transport calls.

Everything here happens in one thread and at once; what takes long is given to a worker and comes back as an event. A
transport (:mod:`~gruppetto.runtime.http_server`, :mod:`~gruppetto.runtime.memory`) calls in with encoded frames and
bodies, empties the connections, and calls :meth:`SyncerService.tick` no later than :attr:`SyncerService.wake_at`.

Whatever is malformed raises :class:`ProtocolError` before the core hears of it, is counted, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gruppetto.errors import GruppettoError, ProtocolError, RunFailed, SteppedDown
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.layout import Layout
from gruppetto.numerics.outer import OuterState, choose_outer
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.actions import Alarm, AlarmKind, AlarmOver
from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.protocol.events import LinkLost, Seeded
from gruppetto.protocol.messages import Answer, Deferred, Goodbye, Heartbeat, Marked, Progress, Refusal, RefusalReason
from gruppetto.protocol.reception import refusal_for
from gruppetto.protocol.round import Phase
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.checkpoint_timer import CheckpointTimer
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.engine import Engine, is_older
from gruppetto.runtime.health import Observer, status_before_the_first_learner, status_of
from gruppetto.runtime.intake import Intake, Upload
from gruppetto.runtime.model_stream import ModelStream
from gruppetto.runtime.parameters import Value
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shard_map import Place, ShardDirectory, plan_of
from gruppetto.runtime.shared_memory import SharedMemory
from gruppetto.runtime.store import Identity, Store, Values
from gruppetto.runtime.surroundings import Surroundings, is_spoilt
from gruppetto.runtime.switchboard import refuse
from gruppetto.runtime.wire import (
    FROM_LEARNER,
    MAX_HELLO_BYTES,
    CloseCode,
    HelloFrame,
    ProgressFrame,
    check_wire_version,
    decode_frame,
)
from gruppetto.runtime.worker import Worker
from gruppetto.trace.log import TraceWriter

__all__ = ["NotAsked", "NotYours", "Room", "SyncerService"]

_log = logging.getLogger("gruppetto.syncer")

NOT_FOR_METRICS = frozenset({"self", "t", "who", "kind", "steps"})
"""Names that mean something else in a note of the trace."""


class NotAsked(ProtocolError):
    """Initial weights from a learner that was not asked for them, or is not any more: its picture of the run is old."""


class NotYours(ProtocolError):
    """Somebody speaks in the name of another one."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where a body goes, and whether it can be taken in now."""

    intake: Intake
    has_room: Callable[[], bool]


class SyncerService:
    """One syncer on its state directory. Raises :class:`StateError` when that cannot be used.

    ``on_change`` is called after every event: :attr:`wake_at` and :attr:`over` may have changed.
    """

    def __init__(
        self,
        protocol: ProtocolSetting,
        setting: SyncerSetting,
        *,
        clock: Clock,
        trace: TraceWriter,
        merger: Worker,
        disk: Worker,
        over: bool = False,
        known: Values | None = None,
        memory: SharedMemory | None = None,
    ) -> None:
        """``over``, ``known``: see :class:`~gruppetto.runtime.store.Store`; for a standby that takes over. ``memory``:
        where published values lie that learners of this machine may read themselves."""
        self.protocol, self.setting = protocol, setting
        self._memory = memory
        self.on_change: Callable[[], None] = _nobody_listens
        self.seen = Observer()
        self.surroundings = Surroundings(setting.state)
        self.complaints = Complaints(_log)
        self._clock, self._trace, self._merger, self._disk = clock, trace, merger, disk
        self._outer, why = choose_outer(setting.outer, protocol.rounds, protocol.sync_period)
        identity = Identity(
            fragments_asked=protocol.num_fragments,
            fragmenter=setting.fragmenter,
            merge=setting.merge,
            optimizer=self._outer.optimizer,
            shard=str(setting.shard),
        )
        self._store = Store(
            setting.state,
            identity=identity,
            run_id=setting.run_id,
            over=over,
            reserve=protocol.reserve,
            apart=protocol.sync_period,
            snapshots_kept=setting.snapshots_kept,
            known=known,
        )
        self.directory = ShardDirectory(setting.shard, run_id=self._store.run_id, plan=plan_of(protocol, setting))
        """Where all shards of the run are."""
        self._timer = CheckpointTimer.of(setting.state, setting.checkpoint_every_s, clock.now())
        self._stepped_down: SteppedDown | None = None
        self._stopping = False
        self.engine: Engine | None = None
        """None until the layout is known."""
        try:
            self._claim()
        except BaseException:
            self._store.close()
            raise
        self.directory.epoch = self._store.epoch
        if protocol.notice and self._store.epoch == 1:
            _log.warning("%s", protocol.notice)
        _log.info("run %s, epoch %d; outer optimizer: %s", self.run_id, self._store.epoch, why)

    @property
    def run_id(self) -> str:
        return self._store.run_id

    @property
    def trace(self) -> TraceWriter:
        """What is recorded of this run."""
        return self._trace

    @property
    def epoch(self) -> int:
        return self._store.epoch

    @property
    def wake_at(self) -> float | None:
        """When :meth:`tick` wants to be called, on the service's clock; None: not before something happens."""
        if self.engine is None:
            return None
        return min((t for t in (self.engine.wake_at, self._timer.due_at) if t is not None), default=None)

    @property
    def over(self) -> bool:
        """The run is finished and put away, or it has failed (then ``failure`` says how)."""
        return self.engine is not None and self.engine.over

    @property
    def failure(self) -> RunFailed | SteppedDown | None:
        return self._stepped_down if self.engine is None else self.engine.failure

    def beat(self) -> None:
        """Renew the lease; from any thread. Raises OSError, or :class:`SteppedDown`, which :meth:`step_down` takes."""
        self._store.beat()

    def step_down(self, error: SteppedDown) -> None:
        """Another syncer has the authority over the run: this one ends."""
        self._stepped_down = error
        if self.engine is not None:
            self.engine.step_down(error)
        self.on_change()

    def tick(self) -> None:
        """Time has passed."""
        if self.engine is None:
            return
        now = self._clock.now()
        if self._timer.is_due(now):
            self._timer.begin_anew(now)
            if self.engine.core.phase is not Phase.SEEDING and not self.over:
                self.engine.checkpoints.take_by_timer(self.engine.core.round)
        self.engine.tick()

    def say_farewell(self) -> None:
        """The syncer stops: tell the learners, who will dial until it is back."""
        self._stopping = True
        if self.engine is not None:
            self.engine.switchboard.close_all(CloseCode.GOING_AWAY, "the syncer stops")

    def stop(self) -> None:
        """Make what is published durable, and decide nothing more; :attr:`stopped` when that is done, or cannot be."""
        if self.engine is not None:
            self.engine.stop()

    @property
    def stopped(self) -> bool:
        """Nothing is left to be made durable, or the authority or the engine is gone."""
        return self.engine is None or self.failure is not None or self.over or self.engine.stopped

    def warn(self, kind: AlarmKind, text: str) -> None:
        """Raise an alarm about what the core knows nothing of; "" withdraws it."""
        now = self._clock.now()
        if text:
            _log.warning("%s", text)
            self.seen.saw(now, Alarm(kind=kind, text=f"{text}. {ALARMS[kind].action}"))
        else:
            self.seen.saw(now, AlarmOver(kind=kind))

    def close(self) -> None:
        """Finish what the workers have begun and let go of the state. Whatever was published is durable already."""
        if self.engine is not None:
            self.engine.close()
        self._merger.close()
        self._disk.close()
        if self.engine is not None and not isinstance(self.failure, SteppedDown):
            self.engine.note_ledger()
        self._store.close()

    # ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────

    def greet(self, data: bytes, peer: str, *, speaker: LearnerId | None = None) -> Connection:
        """The first frame of a control connection from ``peer``. The answer waits in the connection.

        ``speaker``: who it is known to be; whoever says another name raises :class:`NotYours`. A model that no run can
        be made of is refused, once and for all, with the reason.
        """
        if len(data) <= MAX_HELLO_BYTES:
            check_wire_version(data)
        frame = decode_frame(data, {"HelloFrame"})
        assert isinstance(frame, HelloFrame)
        _check_name(speaker, frame.hello.learner)
        self.seen.traffic.up += len(data)
        hello = frame.hello
        connection = Connection(learner=hello.learner, session=hello.session, peer=peer)
        if self._stopping:
            connection.close(CloseCode.GOING_AWAY, "the syncer stops")
            return connection
        try:
            self._store.check_authority()
        except SteppedDown as error:
            self.step_down(error)
            connection.close(CloseCode.GOING_AWAY, "another syncer serves this run")
            return connection
        if self.engine is None and not hello.can_seed:
            refusal = refusal_for(
                hello,
                run_id=self.run_id,
                layout_hash=hello.layout_hash,
                superseded=False,
                newest_round=Round(max(hello.versions, default=0)),
                finished_at=None,
                needs_weights=True,
            )
            assert refusal is not None
            refuse(connection, refusal, self.complaints)
            return connection
        if self.engine is None or self.engine.deserted:
            layout = frame.to_layout()
            if layout.numel == 0:
                raise ProtocolError("the model has no elements to train")
            try:
                self.engine = self._make_engine(layout)
            except Exception as wrong:
                refuse(connection, _cannot_serve(wrong), self.complaints)
                return connection
        self.engine.greet(connection, frame)
        return connection

    def receive(self, connection: Connection, data: bytes) -> None:
        """Any later frame of a control connection. After a :class:`ProtocolError` it is to be closed."""
        frame = decode_frame(data, FROM_LEARNER)
        self.seen.traffic.up += len(data)
        engine = self.engine
        if engine is None or connection.closing is not None or not engine.switchboard.is_current(connection):
            return  # it is about to close; what it still says counts no more
        match frame:
            case ProgressFrame(progress=news, metrics=metrics, recovery=recovery):
                _check_speaker(connection, news.learner)
                if recovery is not None:
                    self.seen.recovered(self._clock.now(), news.learner, recovery)
                    self._trace.note(self._clock.now(), news.learner, "recovery", **asdict(recovery))
                spoilt = is_spoilt(self.seen.metrics.get(news.learner, {}))
                if metrics:
                    self.seen.metrics[news.learner] = metrics
                    self._note_metrics(news, metrics)
                engine.feed(news)
                if metrics and is_spoilt(metrics) is not spoilt:
                    self.look_around()  # an alarm begins or ends here and now
            case Deferred() | Marked() | Goodbye():
                _check_speaker(connection, frame.learner)
                engine.feed(frame)
            case _:
                raise AssertionError(frame)

    def lost(self, connection: Connection) -> None:
        """A control connection has closed."""
        if self.engine is not None and self.engine.switchboard.unplug(connection) and connection.incarnation:
            self.engine.feed(LinkLost(learner=connection.learner, incarnation=connection.incarnation))

    def heartbeat(self, data: bytes, *, speaker: LearnerId | None = None, wall_s: str | None = None) -> None:
        """A heartbeat, which comes on a connection of its own; ``speaker`` as in :meth:`greet`. ``wall_s``: the wall
        clock over there, for people."""
        beat = decode_frame(data, {"Heartbeat"})
        assert isinstance(beat, Heartbeat)
        _check_name(speaker, beat.learner)
        if self.engine is not None:
            self.engine.feed(beat)
            if self.engine.core.members.get(beat.learner) is not None:
                self.surroundings.heard(beat.learner, wall_s)

    def look_around(self) -> None:
        """See what no message tells: room on the disk, clocks, losses. To be called now and then."""
        if self.engine is not None and not self.over:
            live = [member.learner for member in self.engine.core.members.live()]
            self.engine.feed(self.surroundings.look(live, self.seen.metrics, numel=self.engine.layout.numel))

    # ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def room_for(self, answer: Answer, codec: str, length: int, runs: Runs | None = None) -> Room:
        """Where a contribution goes that is announced as ``length`` bytes in ``codec``, or such a piece of one."""
        engine = self.engine_for(answer.fragment)
        wanted = engine.contributions.codec.name
        if codec != wanted:
            raise ProtocolError(f"contributions of this run come as {wanted}, not {codec[:32]!r}")
        if runs is None:
            engine.contributions.check(engine.parameters.spec(answer.fragment), length)
            return Room(engine.contributions, engine.contributions.has_room)
        engine.halves.check(runs, length)
        return Room(engine.halves.intake, partial(engine.halves.has_room, answer, runs))

    def wants(self, answer: Answer) -> bool:
        """The contribution would be merged now: it is worth a buffer, and the reading."""
        return self.engine is not None and self.engine.wants(answer) and not self.engine.superseded(answer)

    def turn_away(self, answer: Answer, runs: Runs | None = None) -> str:
        """Refuse a contribution that is not wanted, unread. Why, the learner hears on its control connection: once, of
        several pieces with the first one."""
        engine = self.engine_for(answer.fragment)
        if not engine.wants(answer) and (runs is None or runs.bounds[0][0] == 0):
            engine.turn_away(answer)
        return "dropped"

    def open_contribution(
        self, answer: Answer, codec: str, length: int, crc: int | None, runs: Runs | None = None
    ) -> Upload | PieceUpload:
        """Take a buffer for a contribution of ``length`` bytes, or for a piece. Only while there is room for it.

        ``crc``: None if its checksum comes behind it.
        """
        self.room_for(answer, codec, length, runs)
        engine = self.engine_for(answer.fragment)
        spec = engine.parameters.spec(answer.fragment)
        if runs is None:
            return engine.contributions.open(spec, length, crc)
        engine.halves.drop(lambda half: is_older(half, than=answer))
        return engine.halves.open(answer, spec, runs, length, crc)

    def tokens_taken(self, answer: Answer) -> int:
        """Of how many tokens this learner's contribution to that round is made, if one has been taken; else 0."""
        return self.engine_for(answer.fragment).core.tokens_taken(answer)

    def contribute(self, answer: Answer, upload: Upload | PieceUpload) -> str:
        """The body is here. "taken" or "dropped"; why it was dropped the learner hears on its control connection.
        "held": it is a piece, and others are to come."""
        engine = self.engine_for(answer.fragment)
        if isinstance(upload, Upload):
            body = upload.finish()
            self.seen.traffic.up += len(body.payload)
        else:
            self.seen.traffic.up += upload.length
            whole = engine.halves.finish(answer, upload)
            if whole is None:
                return "held"
            body = whole
        return "taken" if engine.decide(answer, body) else "dropped"

    def room_for_seed(
        self, learner: LearnerId, incarnation: Incarnation, fragment: Fragment, runs: Runs | None
    ) -> Room:
        """Where the initial weights of a fragment go, or a piece of them."""
        engine = self.engine_for(fragment)
        if runs is None:
            return Room(engine.seeds, engine.seeds.has_room)
        half = learner, incarnation, fragment
        return Room(engine.seed_halves.intake, partial(engine.seed_halves.has_room, half, runs))

    def open_seed(
        self,
        learner: LearnerId,
        incarnation: Incarnation,
        fragment: Fragment,
        length: int,
        crc: int | None,
        runs: Runs | None = None,
    ) -> Upload | PieceUpload:
        """Take a buffer for initial weights, from the learner that was asked for them."""
        engine = self.engine_for(fragment)
        self._check_seeder(learner, incarnation)
        spec = engine.parameters.spec(fragment)
        if runs is None:
            return engine.seeds.open(spec, length, crc)
        return engine.seed_halves.open((learner, incarnation, fragment), spec, runs, length, crc)

    def seed(
        self, learner: LearnerId, incarnation: Incarnation, fragment: Fragment, upload: Upload | PieceUpload
    ) -> None:
        """The initial weights of one fragment are here, or a piece. With the last one the run goes on."""
        engine = self.engine_for(fragment)
        self._check_seeder(learner, incarnation)
        if isinstance(upload, Upload):
            body = upload.finish()
        else:
            whole = engine.seed_halves.finish((learner, incarnation, fragment), upload)
            if whole is None:
                return
            body = whole
        try:
            self.seen.traffic.up += len(body.payload)
            if not body.inspection.finite:
                raise ProtocolError(f"the initial weights of fragment {fragment} hold NaN or infinity")
            engine.parameters.seed(fragment, body)
        finally:
            body.release()
        if engine.parameters.seed_is_complete:
            engine.seeder = None
            value_norms = engine.parameters.value_norms()
            engine.feed(Seeded(learner=learner, incarnation=incarnation, value_norms=value_norms))

    def is_seeder(self, learner: LearnerId, incarnation: Incarnation) -> bool:
        """It was asked for the initial weights, and nobody else has been since."""
        return self.engine is not None and self.engine.seeder == (learner, incarnation)

    def engine_for(self, fragment: Fragment) -> Engine:
        """The engine, if it has this fragment."""
        if self.engine is None:
            raise ProtocolError("no learner has said yet what the model looks like")
        if not 0 <= fragment < len(self.engine.parameters.parts.fragments):
            raise ProtocolError(f"there is no fragment {fragment}")
        return self.engine

    # ── what is on offer ─────────────────────────────────────────────────────────────────────────────────────────

    def drop_halves(self) -> None:
        """Something has happened: give up the half answers that nobody wants any more."""
        if self.engine is not None:
            self.engine.drop_halves()

    def runs_of(self, fragment: Fragment, text: str) -> Runs:
        """The elements of a fragment that a header names; at least one. Raises :class:`ProtocolError`."""
        runs = Runs.decode(text, self.engine_for(fragment).parameters.spec(fragment).numel)
        if not runs.bounds:
            raise ProtocolError("a piece of a fragment without elements")
        return runs

    def borrow(self, fragment: Fragment) -> Value | None:
        """The published value of a fragment, to be given back; None while there is none."""
        return self.engine_for(fragment).parameters.current(fragment)

    def borrow_model(self) -> ModelStream | None:
        """All published values, of one moment, each to be given back; None while there are none."""
        engine = self.engine
        if engine is None or not engine.parameters.seeded:
            return None
        parts = engine.parameters.parts
        values: dict[Fragment, Value] = {}
        for p in map(Fragment, range(len(parts.fragments))):
            value = engine.parameters.current(p)
            assert value is not None
            values[p] = value
        return ModelStream(engine.layout, parts, values, engine.core.published_round, self.setting.shard)

    def give_back(self, *values: Value) -> None:
        """Their reader has gone."""
        assert self.engine is not None
        for value in values:
            self.engine.parameters.release(value)

    def hear_of(self, place: Place, peer: str) -> None:
        """A shard is announced, from the address ``peer``. Raises :class:`SettingError` for one that does not fit."""
        self.look_at_layout()
        self.directory.hear(place, self._clock.now(), peer)

    def look_at_layout(self) -> None:
        """The directory compares layouts, as soon as one is known."""
        if self.engine is not None:
            self.directory.layout_hash = self.engine.layout.layout_hash

    def take_checkpoint(self, name: str) -> dict[str, Any]:
        """Begin a checkpoint of the whole run; how it stands.

        Raises :class:`StateError` for an impossible name, and while another one is being taken.
        """
        if not self.setting.shard.is_whole:
            why = f"the {self.setting.shard.of} shards of this run cannot be cut at one moment; each is durable alone"
            return {"mark": name, "stage": "refused", "why": why}
        if self.engine is None:
            return {"mark": name, "stage": "refused", "why": "the run has no weights yet; ask again when it has begun"}
        self.engine.checkpoints.take(name)
        report = self.checkpoint_report()
        assert report is not None
        return report

    def checkpoint_report(self) -> dict[str, Any] | None:
        """How the newest checkpoint stands; None if nobody has asked this process for one."""
        if self.engine is None or self.engine.checkpoints.report is None:
            return None
        report, mark = self.engine.checkpoints.report, self.engine.core.open_mark
        if report["stage"] == "waiting" and mark is not None and mark.mark == report["mark"]:
            return {**report, "waiting_for": mark.waiting_for}
        return report

    def status(self) -> dict[str, Any]:
        """What people and tools see; the keys are explained in :mod:`gruppetto.runtime.health`."""
        now, where = self._clock.now(), self.directory.map()
        shards = {"shard": str(self.setting.shard), "shards": {str(k): url for k, url in where.addresses.items()}}
        if self.engine is None:
            told = status_before_the_first_learner(
                self.protocol, self.seen, run_id=self.run_id, epoch=self.epoch, now=now
            )
            return {**told, **shards}
        return {**status_of(self.engine.core, self.seen, now), **shards}

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self) -> None:
        """Take up what the last life left."""
        self._store.claim_epoch()
        if self._store.state is None:
            return
        self.engine = self._make_engine(self._store.layout(), list(self._store.load()))
        self._tell_what_was_found()
        self.engine.tick()

    def _tell_what_was_found(self) -> None:
        """In the log, as an alarm, and on the trace."""
        now = self._clock.now()
        for text in self._store.notices:
            _log.info("%s: %s", self.setting.state, text)
        for text in self._store.found:
            _log.warning("%s: %s", self.setting.state, text)
            self.seen.saw(now, Alarm(kind=AlarmKind.DAMAGED, text=f"{text}. {ALARMS[AlarmKind.DAMAGED].action}"))
        if self._store.found or self._store.unseen:
            self._trace.note(
                now,
                "syncer",
                "recovery",
                found=self._store.found,
                unseen=self._store.unseen,
                damaged=[value.fragment for value in self._store.damaged],
            )

    def _check_seeder(self, learner: LearnerId, incarnation: Incarnation) -> None:
        if not self.is_seeder(learner, incarnation):
            raise NotAsked(f"nobody asked {learner[:128]} (incarnation {incarnation}) for initial weights")

    def _note_metrics(self, news: Progress, metrics: Mapping[str, float]) -> None:
        fields = {name: value for name, value in metrics.items() if name not in NOT_FOR_METRICS}
        self._trace.note(self._clock.now(), news.learner, "metrics", steps=news.steps, **fields)

    def _make_engine(
        self, layout: Layout, saved: Sequence[tuple[Fragment, Version, Float32, OuterState]] = ()
    ) -> Engine:
        return Engine(
            layout,
            self.protocol,
            self.setting,
            self._outer,
            store=self._store,
            clock=self._clock,
            trace=self._trace,
            merger=self._merger,
            disk=self._disk,
            seen=self.seen,
            complaints=self.complaints,
            on_change=lambda: self.on_change(),
            saved=saved,
            memory=self._memory,
        )


def _check_speaker(connection: Connection, learner: LearnerId) -> None:
    if learner != connection.learner:
        raise ProtocolError(f"{connection.learner} may not speak for {learner}")


def _check_name(speaker: LearnerId | None, learner: LearnerId) -> None:
    if speaker is not None and learner != speaker:
        raise NotYours(f"{speaker} may not speak for {learner}")


def _cannot_serve(why: Exception) -> Refusal:
    """No run can be made of this model. The same would come of the next try."""
    if not isinstance(why, GruppettoError):
        _log.error("a learner's model could not be taken in", exc_info=why)
    text = str(why) or type(why).__name__
    return Refusal(reason=RefusalReason.LAYOUT, text=f"this syncer cannot serve the learner's model: {text[:500]}")


def _nobody_listens() -> None:
    pass
