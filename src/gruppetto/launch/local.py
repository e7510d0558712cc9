"""A whole run: a syncer, its learners and a judge as processes, on this machine or where an engine puts them, watched
until the run has ended.

A learner or a syncer that dies is noted and started again, and the others ride on: the run needs a syncer and one
learner, or the hope of one. What each process says is kept in the run directory::

    RUNDIR/  run.toml  corpus.json  trace.jsonl  processes.json  evaluation.jsonl, deaths.jsonl (until the end)
             syncer/ (durable state)  syncer.log  standby.log  judge.log  learners/NAME/learner.log
             trace-2.jsonl  syncer-2/  syncer-2.log ... of the second of several shards
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gruppetto.config import RunConfig
from gruppetto.config.write import write_run
from gruppetto.errors import GruppettoError, Stopped
from gruppetto.launch.children import Child, stop
from gruppetto.launch.engine import Engine, ThisMachine
from gruppetto.launch.failing import failure, failure_of
from gruppetto.launch.judging import Judging
from gruppetto.launch.learners import Learners
from gruppetto.launch.notes import Losses, keep_notes
from gruppetto.launch.papers import learner_papers
from gruppetto.launch.revival import Revival
from gruppetto.launch.routes import PlainRoutes, Routes
from gruppetto.launch.shards import AllSyncers
from gruppetto.launch.sight import ProcessFile, Sight
from gruppetto.launch.stopping import told_to_stop
from gruppetto.launch.strike import Strike
from gruppetto.launch.syncers import SYNCER
from gruppetto.numerics.codec import CASTS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.kernels import warm
from gruppetto.report.rundir import RUN
from gruppetto.runtime.clock import Clock
from gruppetto.train.data import open_data
from gruppetto.train.manifest import write_manifest

__all__ = ["run_local"]

POLL_S = 0.25
STATUS_EVERY_S = 0.5
FAREWELL_S = 30.0
"""How long learners may take to leave a finished run, and the books to be closed."""
JUDGEMENT_S = 300.0
"""How long the last evaluation and the export may take."""


def run_local(
    config: RunConfig,
    directory: Path,
    *,
    cache: Path,
    clock: Clock,
    show: Callable[[Sight], None],
    strike: Strike | None = None,
    routes: Routes | None = None,
    parts: Mapping[str, Path] | None = None,
    engine: Engine | None = None,
) -> str:
    """Run ``config`` in ``directory``, which exists and is empty, until its last round is evaluated and exported.

    ``show`` is called a few times a second; ``strike`` is a kill on purpose; ``routes`` say how processes are called;
    ``parts`` are those of a checkpoint, by learner, from which the run goes on in a directory that was made ready;
    ``engine`` runs syncer and learners elsewhere, and is closed in the end. What comes back is why the last weights
    could not be judged, and "" when they were: the run itself has reached its end either way.

    Raises :class:`UserError` for what cannot start, :class:`RunFailed` when the syncer is dead for good or no learner
    is left, and :class:`Stopped` when somebody stops the run. No process is left behind, whatever happens.
    """
    run = _LocalRun(
        config, directory, cache=cache, clock=clock, show=show, strike=strike, routes=routes, parts=parts, engine=engine
    )
    with told_to_stop() as run.stopping:
        run.prepare()
        try:
            run.start()
            run.ride()
            return run.finish()
        finally:
            run.end()


class _LocalRun:
    """See :func:`run_local`: ``prepare``, ``start``, ``ride`` and ``finish`` follow each other, and ``end`` comes last
    whatever happens."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        cache: Path,
        clock: Clock,
        show: Callable[[Sight], None],
        strike: Strike | None = None,
        routes: Routes | None = None,
        parts: Mapping[str, Path] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.config, self.directory, self.cache = config, directory, cache
        self.stopping: Sequence[int] = ()
        """The signals that stop the run, once there is one."""
        self._clock, self._show = clock, show
        called: Routes = PlainRoutes() if routes is None else routes
        self._began = clock.now()
        self._asked_at = -STATUS_EVERY_S
        self._answered = False
        self._pause = threading.Event()
        self._sight, self._losses = Sight(), Losses(directory)
        self._file = ProcessFile(directory, SYNCER)
        self._revival = Revival(config, directory, clock)
        self._engine: Engine = ThisMachine() if engine is None else engine
        self._syncers = AllSyncers(config, directory, called, self._engine)
        self._judging = Judging(directory, cache, threads=config.train.threads)
        self._learners = Learners(
            config,
            directory,
            cache=cache,
            routes=called,
            syncer=self._syncers.first.address,
            revival=self._revival,
            strike=strike,
            parts=parts or {},
            engine=self._engine,
        )

    def prepare(self) -> None:
        """Here rather than in the children: mistakes surface before anything starts, and caches are filled once."""
        for entry in self.config.learners:
            learner_papers(self.config.syncer.certs, self.config.syncer.token_file, entry.name)
        self._look("preparing the data")
        data = open_data(self.config.train, self.cache)
        write_manifest(data.manifest, self.directory)
        write_run(self.config, self.directory / RUN)
        self._look("preparing the kernels")
        warm({*CASTS, self.config.codec.uplink, *DOWNLINKS[self.config.codec.downlink].codecs})

    def start(self) -> None:
        """All at once: most of their start-up is imports, and the learners wait for the syncer by themselves."""
        self._syncers.start()
        for seat in self._syncers.seats:
            self._revival.started(seat)
        self._learners.begin_all()
        self._judging.call()

    def ride(self) -> None:
        """Until the last round is closed."""
        while not self._sight.finished:
            self._look("starting" if self._sight.phase in ("", "seeding", "starting") else "training")
            self._learners.strike_if_due(self._sight.round)
            self._mend()
            self._judging.at_work()
            if not self._riding:
                # They leave a run that is finished, and we may have slept through its end.
                self._ask()
                if not self._sight.finished:
                    raise self._failure("no learner is left", list(self._learners.children.values()))

    def finish(self) -> str:
        """Learners leave, the books are closed, the last weights are judged and exported; why not, if they are not."""
        since = self._clock.now()
        while self._clock.now() - since < FAREWELL_S and (self._sight.open_tokens or self._riding):
            self._look("arriving")
            self._mend()
        while self._judging.at_work() and self._clock.now() - since < JUDGEMENT_S:
            self._look("judging the last weights")
            self._mend()
        self._look("done")
        judge = self._judging.child
        assert judge is not None
        if judge.state == "done":
            return ""
        what = f"the last weights were not judged: the judge is {judge.state}"
        return str(failure_of(judge, what, directory=self.directory, round=self._sight.round))

    def end(self) -> None:
        """Stop what still runs, learners first, and put the evaluations into the trace."""
        stop([*self._learners.children.values(), *([self._judging.child] if self._judging.child else [])])
        if any(self._syncers.children()):
            self._syncers.stop()
            self._write_processes()
        self._engine.close()
        keep_notes(self.directory)

    # ── mending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _mend(self) -> None:
        """See who has died, and start again whose time has come. Raises when the syncer is dead for good."""
        self._syncers.mend(self._revival, finished=self._sight.finished)
        what, guilty = self._syncers.lost(self._revival)
        if what:
            raise self._failure(what, guilty)
        self._learners.mend(self._sight, self._ask)

    # ── seeing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, stage: str) -> None:
        """Wait a moment, see how things stand, show it. Raises :class:`Stopped` when somebody wants an end."""
        self._pause.wait(0.0 if stage.startswith("preparing") else POLL_S)
        self._engine.look(self._syncers.first.url)
        if self.stopping:
            more = f" at round {self._sight.round}; what was published is in {self._syncers.first.state}"
            raise Stopped(self.stopping[0], where=str(self.directory), more=more)
        now = self._clock.now()
        self._sight.stage, self._sight.elapsed_s = stage, now - self._began
        if any(self._syncers.children()) and now - self._asked_at >= STATUS_EVERY_S:
            self._asked_at = now
            self._ask()
            self._syncers.listen_for_standby()
            with suppress(GruppettoError, OSError):  # they are for show
                self._losses.look()
            self._sight.losses = self._losses.known
            self._write_processes()
        self._show(self._sight)

    def _ask(self) -> None:
        answer = self._syncers.ask()
        self._sight.status, self._sight.page = answer or self._sight.status, self._syncers.first.page
        self._answered = answer is not None

    def _write_processes(self) -> None:
        revival, first, other = self._revival, self._syncers.first.first, self._syncers.first.other
        learners = {name: revival.described(name, child) for name, child in self._learners.children.items()}
        syncer = {SYNCER: revival.described(first, first.child)} if first.child is not None else {}
        seats = (shard.first for shard in self._syncers.shards[1:])
        shards = {seat.name: revival.described(seat, seat.child) for seat in seats if seat.child is not None}
        self._sight.processes, self._sight.shards = {**syncer, **learners}, shards
        quiet = "not answering" if first.served else "starting"
        state = syncer.get(SYNCER, {}).get("state", "")
        self._sight.silent = "" if self._answered else quiet if first.running else state
        if other is not None and other.child is not None:
            self._sight.standby = {**revival.described(other, other.child, doing=other.doing), "url": other.url}
        self._file.write(self._sight)

    @property
    def _riding(self) -> bool:
        return self._learners.riding(self._sight)

    def _failure(self, what: str, guilty: Sequence[Child]) -> GruppettoError:
        return failure(guilty, what, directory=self.directory, round=self._sight.round)
