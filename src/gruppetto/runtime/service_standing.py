"""What the syncer's service has in hand, and how it begins and ends; all that it does is built on this."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gruppetto.errors import ProtocolError, RunFailed, SteppedDown
from gruppetto.numerics.downlink import Kept
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.layout import Layout
from gruppetto.numerics.outer import choose_outer
from gruppetto.protocol.actions import Alarm, AlarmKind
from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.protocol.events import GoesOnElsewhere
from gruppetto.protocol.round import Phase
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.checkpoint_timer import CheckpointTimer
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.engine import Engine
from gruppetto.runtime.health import Observer
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shard_map import ShardDirectory, plan_of
from gruppetto.runtime.shared_memory import SharedMemory
from gruppetto.runtime.store import Identity, Store, Values
from gruppetto.runtime.surroundings import Surroundings
from gruppetto.runtime.worker import Worker
from gruppetto.trace.log import TraceWriter

__all__ = ["ServiceStanding"]

_log = logging.getLogger("gruppetto.syncer")


class ServiceStanding:
    """The service between two calls. Raises :class:`StateError` when its state directory cannot be used.

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
            optimizer=self._outer.keeps,
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

    def engine_for(self, fragment: Fragment) -> Engine:
        """The engine, if it has this fragment."""
        if self.engine is None:
            raise ProtocolError("no learner has said yet what the model looks like")
        if not 0 <= fragment < len(self.engine.parameters.parts.fragments):
            raise ProtocolError(f"there is no fragment {fragment}")
        return self.engine

    def beat(self) -> None:
        """Renew the lease; from any thread. Raises OSError, or :class:`SteppedDown`, which :meth:`step_down` takes."""
        self._store.beat()

    def look_at_shards(self) -> None:
        """The directory compares layouts, as soon as one is known, and passes on who has finished; the core hears
        whether all others have."""
        if self.engine is None:
            return
        directory, core = self.directory, self.engine.core
        directory.layout_hash, directory.finished = self.engine.layout.layout_hash, core.phase is Phase.FINISHED
        if directory.goes_on_elsewhere is not core.goes_on_elsewhere:
            self.engine.feed(GoesOnElsewhere(goes_on=directory.goes_on_elsewhere))

    def step_down(self, error: SteppedDown) -> None:
        """Another syncer has the authority over the run: this one ends."""
        self._stepped_down = error
        if self.engine is not None:
            self.engine.step_down(error)
        self.on_change()

    def close(self) -> None:
        """Finish what the workers have begun and let go of the state. Whatever was published is durable already."""
        if self.engine is not None:
            self.engine.close()
        self._merger.close()
        self._disk.close()
        if self.engine is not None and not isinstance(self.failure, SteppedDown):
            self.engine.notes.ledger()
        self._store.close()

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self) -> None:
        """Take up what the last life left."""
        self._store.claim_epoch()
        if self._store.state is None:
            return
        self.engine = self._make_engine(self._store.layout(), list(self._store.load()))
        self._tell_what_was_found()
        self.look_at_shards()  # first of all: alone, a finished one would close its books
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

    def _make_engine(self, layout: Layout, saved: Sequence[tuple[Fragment, Version, Float32, Kept]] = ()) -> Engine:
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


def _nobody_listens() -> None:
    pass
