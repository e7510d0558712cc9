"""The syncer without a network: what a transport calls.

Everything here happens in one thread and at once; what takes long is given to a worker and comes back as an event. A
transport (:mod:`~gruppetto.runtime.http_server`, :mod:`~gruppetto.runtime.mailbox`) calls in with encoded frames and
bodies, empties the connections, and calls :meth:`SyncerService.tick` no later than :attr:`SyncerService.wake_at`.

One class in four files: :mod:`~gruppetto.runtime.service_standing` (what it has in hand, how it begins and ends),
:mod:`~gruppetto.runtime.bodies_in` (what comes in), :mod:`~gruppetto.runtime.on_offer` (what can be had), and this one:
what learners say, the time, and the end.

Whatever is malformed raises :class:`ProtocolError` before the core hears of it, is counted, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict

from gruppetto.errors import GruppettoError, ProtocolError, SteppedDown
from gruppetto.protocol.actions import Alarm, AlarmKind, AlarmOver
from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.protocol.events import LinkLost
from gruppetto.protocol.messages import Deferred, Goodbye, Heartbeat, Marked, Progress, Refusal, RefusalReason
from gruppetto.protocol.reception import refusal_for
from gruppetto.protocol.round import Phase
from gruppetto.protocol.units import LearnerId, Round
from gruppetto.runtime.bodies_in import BodiesIn, NotAsked, Room
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.on_offer import OnOffer
from gruppetto.runtime.surroundings import is_spoilt
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

__all__ = ["NotAsked", "NotYours", "Room", "SyncerService"]

_log = logging.getLogger("gruppetto.syncer")

NOT_FOR_METRICS = frozenset({"self", "t", "who", "kind", "steps"})
"""Names that mean something else in a note of the trace."""


class NotYours(ProtocolError):
    """Somebody speaks in the name of another one."""


class SyncerService(BodiesIn, OnOffer):
    """One syncer on its state directory. Raises :class:`StateError` when that cannot be used."""

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
            self.look_at_shards()
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

    def _note_metrics(self, news: Progress, metrics: Mapping[str, float]) -> None:
        fields = {name: value for name, value in metrics.items() if name not in NOT_FOR_METRICS}
        self._trace.note(self._clock.now(), news.learner, "metrics", steps=news.steps, **fields)

    # ── time, and what is seen meanwhile ─────────────────────────────────────────────────────────────────────────

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

    def look_around(self) -> None:
        """See what no message tells: room on the disk, clocks, losses. To be called now and then."""
        if self.engine is not None and not self.over:
            live = [member.learner for member in self.engine.core.members.live()]
            self.engine.feed(self.surroundings.look(live, self.seen.metrics, numel=self.engine.layout.numel))

    def warn(self, kind: AlarmKind, text: str) -> None:
        """Raise an alarm about what the core knows nothing of; "" withdraws it."""
        now = self._clock.now()
        if text:
            _log.warning("%s", text)
            self.seen.saw(now, Alarm(kind=kind, text=f"{text}. {ALARMS[kind].action}"))
        else:
            self.seen.saw(now, AlarmOver(kind=kind))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

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
