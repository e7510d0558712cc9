"""A whole run on this machine: a syncer, its learners and a judge as processes, watched until the run has ended.

A learner or a syncer that dies is noted and started again, and the others ride on: the run needs a syncer and one
learner, or the hope of one. What each process says is kept in the run directory::

    RUNDIR/  run.toml  trace.jsonl  processes.json  evaluation.jsonl, deaths.jsonl (until the end)
             syncer/ (durable state)  syncer.log  standby.log  judge.log  learners/NAME/learner.log
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gruppetto.config import RunConfig, to_toml
from gruppetto.errors import GruppettoError, RunFailed, Stopped, UserError
from gruppetto.launch.children import LEFT_IN_ORDER, Child, last_words, start, stop
from gruppetto.launch.judging import Judging
from gruppetto.launch.notes import Losses, keep_notes
from gruppetto.launch.revival import Revival
from gruppetto.launch.routes import PlainRoutes, Routes
from gruppetto.launch.sight import ProcessFile, Sight
from gruppetto.launch.stopping import told_to_stop
from gruppetto.launch.strike import Strike
from gruppetto.launch.syncers import STANDBY, SYNCER, Syncers
from gruppetto.numerics.kernels import warm
from gruppetto.runtime.clock import Clock
from gruppetto.train.data import open_data

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
) -> str:
    """Run ``config`` in ``directory``, which exists and is empty, until its last round is evaluated and exported.

    ``show`` is called a few times a second; ``strike`` is a kill on purpose; ``routes`` say how processes are called;
    ``parts`` are those of a checkpoint, by learner, from which the run goes on in a directory that was made ready. What
    comes back is why the last weights could not be judged, and "" when they were: the run itself has reached its end
    either way.

    Raises :class:`UserError` for what cannot start, :class:`RunFailed` when the syncer is dead for good or no learner
    is left, and :class:`Stopped` when somebody stops the run. No process is left behind, whatever happens.
    """
    run = _LocalRun(config, directory, cache=cache, clock=clock, show=show, strike=strike, routes=routes, parts=parts)
    with told_to_stop() as run.stopping:
        run.prepare()
        try:
            run.start()
            run.ride()
            return run.finish()
        finally:
            run.end()


class _LocalRun:
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
    ) -> None:
        self.config, self.directory, self.cache = config, directory, cache
        self.stopping: Sequence[int] = ()
        """The signals that stop the run, once there is one."""
        self._clock, self._show = clock, show
        self._routes: Routes = PlainRoutes() if routes is None else routes
        self._parts = dict(parts or {})
        """Which learners begin with a part. Once such a one has taken part, its own checkpoints are newer."""
        self._strike = strike
        self._began = clock.now()
        self._asked_at = -STATUS_EVERY_S
        self._pause = threading.Event()
        self._sight, self._losses = Sight(), Losses(directory)
        self._file = ProcessFile(directory, SYNCER)
        self._revival = Revival(config, directory, clock)
        self._syncers = Syncers(config, directory, self._routes)
        self._judging = Judging(directory, cache, threads=config.train.threads)
        self._learners: dict[str, Child] = {}

    def prepare(self) -> None:
        """Here rather than in the children: mistakes surface before anything starts, and caches are filled once."""
        self._look("preparing the data")
        open_data(self.config.train, self.cache)
        (self.directory / "run.toml").write_text(to_toml(self.config), encoding="utf-8")
        self._look("preparing the kernels")
        warm()

    def start(self) -> None:
        """All at once: most of their start-up is imports, and the learners wait for the syncer by themselves."""
        self._syncers.start()
        for seat in self._syncers.seats:
            self._revival.started(seat)
        for entry in self.config.learners:
            self._start_learner(entry.name)
        self._judging.call()

    def _start_learner(self, name: str) -> None:
        syncer = self._routes.syncer_for(name, self._syncers.address)
        verb = ["learner", str(self.directory / "run.toml"), "--syncer", syncer]
        verb += ["--name", name, "--cache", str(self.cache)]
        if name in self._parts:
            verb += ["--from", str(self._parts[name])]
        command = self._routes.command(name, [*verb, "--follow-parent"])
        log = self.directory / "learners" / name / "learner.log"
        self._learners[name] = start(name, command, log, threads=self.config.train.threads)
        self._revival.started(name)

    def ride(self) -> None:
        """Until the last round is closed."""
        while not self._finished:
            self._look("starting" if self._sight.phase in ("", "seeding", "starting") else "training")
            self._strike_if_due()
            self._mend()
            self._judging.at_work()
            if not self._riding:
                # They leave a run that is finished, and we may have slept through its end.
                self._ask()
                if not self._finished:
                    raise self._failure("no learner is left", list(self._learners.values()))

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
        return str(self._failed(f"the last weights were not judged: the judge is {judge.state}", judge))

    def end(self) -> None:
        """Stop what still runs, learners first, and put the evaluations into the trace."""
        stop([*self._learners.values(), *([self._judging.child] if self._judging.child else [])])
        if any(self._syncers.children()):
            self._syncers.stop()
            self._write_processes()
        keep_notes(self.directory)

    # ── mending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _strike_if_due(self) -> None:
        strike = self._strike
        if strike is not None and self._sight.round >= strike.round:
            self._strike = None
            self._learners[strike.learner].process.kill()

    def _mend(self) -> None:
        """See who has died, and start again whose time has come. Raises when the syncer is dead for good."""
        self._mend_syncers()
        for name, child in list(self._learners.items()):
            if child.running and self._sight.is_live(name):
                self._revival.took_part(name)
                self._parts.pop(name, None)
            if self._revival.newly_dead(child):
                self._ask()
                # One that has left had nothing to come back to, and a finished run takes no learner in any more.
                if child.process.returncode not in LEFT_IN_ORDER and not self._finished:
                    self._revival.mourn(name, child, name)
            if self._revival.is_due(name) and not self._finished:
                self._revival.make_way(name, child)
                self._start_learner(name)

    def _mend_syncers(self) -> None:
        syncers, revival = self._syncers, self._revival
        for seat in syncers.seats:
            if seat.child is None:
                continue
            if seat.running and (seat.waits or seat.served):
                revival.took_part(seat)
            if revival.newly_dead(seat.child):
                heir = (
                    ""
                    if not syncers.running
                    else "the syncer goes on"
                    if seat.role == STANDBY
                    else "a standby is there"
                )
                revival.mourn(seat, seat.child, seat.role, heir=heir)
            # A finished run needs one that serves its weights, and nobody who waits.
            if revival.is_due(seat) and not (self._finished and syncers.running):
                revival.make_way(seat, seat.child)
                syncers.start_again(seat)
                revival.started(seat)
        if any(syncers.children()) and not syncers.running and not any(map(revival.hopes_for, syncers.seats)):
            seat = syncers.first
            assert seat.child is not None
            because = f" ({why})" if (why := revival.given_up(seat)) else ""
            raise self._failure(f"the syncer is {seat.child.state}{because}", list(syncers.children()))

    # ── seeing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, stage: str) -> None:
        """Wait a moment, see how things stand, show it. Raises :class:`Stopped` when somebody wants an end."""
        self._pause.wait(0.0 if stage.startswith("preparing") else POLL_S)
        if self.stopping:
            more = f" at round {self._sight.round}; what was published is in {self._syncers.state}"
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
        self._sight.status = self._syncers.ask() or self._sight.status

    def _write_processes(self) -> None:
        revival, first, other = self._revival, self._syncers.first, self._syncers.other
        learners = {name: revival.described(name, child) for name, child in self._learners.items()}
        syncer = {SYNCER: revival.described(first, first.child)} if first.child is not None else {}
        self._sight.processes = {**syncer, **learners}
        if other is not None and other.child is not None:
            self._sight.standby = {**revival.described(other, other.child, doing=other.doing), "url": other.url}
        self._file.write(self._sight)

    @property
    def _finished(self) -> bool:
        return self._sight.phase == "finished"

    @property
    def _riding(self) -> bool:
        """Somebody rides, or is about to again."""
        hopeful = not self._finished and any(map(self._revival.hopes_for, self._learners))
        return hopeful or any(child.running for child in self._learners.values())

    # ── failing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _failure(self, what: str, guilty: Sequence[Child]) -> GruppettoError:
        """The error of children that ended: their own last line, as a mistake to mend if they call it one."""
        first = next((child for child in guilty if child.process.returncode == UserError.exit_code), guilty[0])
        if first.process.returncode == UserError.exit_code:
            return UserError(last_words(first).removeprefix("gruppetto: "))
        return self._failed(what, first)

    def _failed(self, what: str, child: Child) -> RunFailed:
        said = last_words(child).removeprefix("gruppetto: ")
        return RunFailed(f"{self.directory}: {what} at round {self._sight.round}: {said} (see {child.log})")
