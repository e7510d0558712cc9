"""A whole run on this machine: a syncer, its learners and a judge as processes, watched until the run has ended.

A learner or a syncer that dies is noted and started again, and the others ride on: the run needs a syncer and one
learner, or the hope of one. What each process says is kept in the run directory::

    RUNDIR/  run.toml  trace.jsonl  processes.json  evaluation.jsonl, deaths.jsonl (until the end)
             syncer/ (durable state)  syncer.log  judge.log  learners/NAME/learner.log
"""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from gruppetto.config import RunConfig, to_toml
from gruppetto.errors import GruppettoError, RunFailed, UserError
from gruppetto.launch.ask import fetch_status, find_endpoint, read_token
from gruppetto.launch.children import Child, last_words, start, stop
from gruppetto.launch.deaths import cause_of, note_death
from gruppetto.launch.restart import Restarts
from gruppetto.launch.routes import PlainRoutes, Routes
from gruppetto.launch.strike import Strike
from gruppetto.numerics.codec import CASTS
from gruppetto.numerics.kernels import warm
from gruppetto.report.rundir import DEATHS, EVALUATION
from gruppetto.runtime.clock import Clock
from gruppetto.trace.log import Record, TraceWriter, read_trace
from gruppetto.train.data import open_data

__all__ = ["Sight", "run_local"]

_log = logging.getLogger("gruppetto.launch")

SYNCER = "syncer"
POLL_S = 0.25
STATUS_EVERY_S = 0.5
FAREWELL_S = 30.0
"""How long learners may take to leave a finished run, and the books to be closed."""
JUDGEMENT_S = 300.0
"""How long the last evaluation and the export may take."""
MAX_JUDGES = 3
"""A judge that dies is replaced; one that dies again and again has a reason to."""


@dataclass(slots=True, kw_only=True)
class Sight:
    """What there is to see of a local run at one moment."""

    elapsed_s: float = 0.0
    stage: str = "preparing"
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """pid, state and number of restarts of every process, by name."""
    status: dict[str, Any] | None = None
    """The syncer's account of itself, as fresh as it could be had."""
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(round, held-out loss of the global model)."""


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

    Raises :class:`UserError` for what cannot start, :class:`RunFailed` when the syncer is dead for good, no learner is
    left, or somebody stops the run. No process is left behind, whatever happens.
    """
    run = _LocalRun(config, directory, cache=cache, clock=clock, show=show, strike=strike, routes=routes, parts=parts)
    with _signals(run.stopping):
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
        self._routes: Routes = PlainRoutes() if routes is None else routes
        self._parts = dict(parts or {})
        """Which learners begin with a part. Once such a one has taken part, its own checkpoints are newer."""
        self.config, self.directory, self.cache = config, directory, cache
        self.stopping: list[str] = []
        """The signal that stops the run, once there is one."""
        self._clock, self._show = clock, show
        self._began = clock.now()
        self._pause = threading.Event()
        self._token = read_token(config.syncer.token_file)
        self._sight = Sight()
        self._asked_at = -STATUS_EVERY_S
        self._syncer: Child | None = None
        self._judge: Child | None = None
        self._judges = 0
        self._learners: dict[str, Child] = {}
        self._strike = strike
        most = config.launch.max_restarts if config.launch.restart else 0
        self._restarts: dict[str, Restarts] = defaultdict(lambda: Restarts(most=most))
        self._started_at: dict[str, float] = {}
        self._buried: set[int] = set()
        """Process ids of those whose death is known."""
        self._judged_bytes = 0
        self._disk_failed = False

    def prepare(self) -> None:
        """Here rather than in the children: mistakes surface before anything starts, and caches are filled once."""
        self._look("preparing the data")
        open_data(self.config.train, self.cache)
        (self.directory / "run.toml").write_text(to_toml(self.config), encoding="utf-8")
        self._look("preparing the kernels")
        warm({*CASTS, self.config.codec.uplink})

    def start(self) -> None:
        """All at once: most of their start-up is imports, and the learners wait for the syncer by themselves."""
        self._start_syncer()
        for entry in self.config.learners:
            self._start_learner(entry.name)
        self._call_judge()

    def _start_syncer(self) -> None:
        verb = ["syncer", str(self.directory / "run.toml"), "--state", str(self._state), "--trace", str(self._trace)]
        endpoint = find_endpoint(self._state)
        if endpoint is not None:
            # Learners dial the address of the one before.
            verb += ["--listen", endpoint.url.rpartition("//")[2]]
        command = self._routes.command(SYNCER, [*verb, "--follow-parent"])
        self._syncer = start(SYNCER, command, self.directory / "syncer.log", threads=1)
        self._started_at[SYNCER] = self._clock.now()

    def _start_learner(self, name: str) -> None:
        verb = ["learner", str(self.directory / "run.toml"), "--syncer", self._routes.syncer_for(name, self._state)]
        verb += ["--name", name, "--cache", str(self.cache)]
        if name in self._parts:
            verb += ["--from", str(self._parts[name])]
        command = self._routes.command(name, [*verb, "--follow-parent"])
        log = self.directory / "learners" / name / "learner.log"
        self._learners[name] = start(name, command, log, threads=self.config.train.threads)
        self._started_at[name] = self._clock.now()

    def ride(self) -> None:
        """Until the last round is closed."""
        while self._phase != "finished":
            self._look("starting" if self._phase in ("", "seeding", "starting") else "training")
            self._strike_if_due()
            self._mend()
            self._check_syncer()
            self._check_judge()
            if not self._riding:
                # They leave a run that is finished, and we may have slept through its end.
                self._ask()
                if self._phase != "finished":
                    raise self._failure("no learner is left", list(self._learners.values()))

    def finish(self) -> str:
        """Learners leave, the books are closed, the last weights are judged and exported; why not, if they are not."""
        assert self._judge is not None
        since = self._clock.now()
        while self._clock.now() - since < FAREWELL_S and (self._open_tokens or self._riding):
            self._look("arriving")
            self._mend()
            self._check_syncer()
        while self._check_judge() and self._clock.now() - since < JUDGEMENT_S:
            self._look("judging the last weights")
            self._mend()
            self._check_syncer()
        self._look("done")
        if self._judge.state == "done":
            return ""
        return str(self._failed(f"the last weights were not judged: the judge is {self._judge.state}", self._judge))

    def end(self) -> None:
        """Stop what still runs, learners first, and put the evaluations into the trace."""
        others = [*self._learners.values(), *([self._judge] if self._judge else [])]
        stop(others)
        if self._syncer is not None:
            stop([self._syncer])
            self._write_processes()
        for name, kept in (("evaluations", EVALUATION), ("deaths", DEATHS)):
            try:
                self._merge_notes(self.directory / kept)
            except (GruppettoError, OSError) as error:
                # The report finds them where they are; what ended the run is what has to be heard.
                _log.warning("the %s stay in %s (%s)", name, self.directory / kept, error)

    # ── mending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _strike_if_due(self) -> None:
        strike = self._strike
        if strike is not None and self._round >= strike.round:
            self._strike = None
            self._learners[strike.learner].process.kill()

    def _mend(self) -> None:
        """See who has died, and start again whose time has come. A finished run takes no learner in any more."""
        now = self._clock.now()
        for name, child in list(self._needed()):
            restarts = self._restarts[name]
            if self._takes_part(name, child):
                restarts.took_part()
                self._parts.pop(name, None)
            if not child.running and child.process.pid not in self._buried:
                self._buried.add(child.process.pid)
                self._see_dead(name, child, now)
            if restarts.is_due(now) and (name == SYNCER or self._phase != "finished"):
                stop([child])
                restarts.started()
                if name == SYNCER:
                    self._start_syncer()
                else:
                    self._start_learner(name)

    def _needed(self) -> Iterator[tuple[str, Child]]:
        if self._syncer is not None:
            yield SYNCER, self._syncer
        yield from self._learners.items()

    def _takes_part(self, name: str, child: Child) -> bool:
        status = self._sight.status
        if status is None or not child.running:
            return False
        return name == SYNCER or bool(status.get("learners", {}).get(name, {}).get("state") == "live")

    def _see_dead(self, name: str, child: Child, now: float) -> None:
        code = child.process.returncode
        if name != SYNCER:
            self._ask()
            if code == 0 or self._phase == "finished":
                return  # it has left, or there was nothing to come back to
        with suppress(GruppettoError, OSError):  # the log says it too
            note_death(self.directory, now - self._began, name, code)
        restarts = self._restarts[name]
        restarts.died(now, lived_s=now - self._started_at.get(name, now), code=code)
        what = restarts.given_up or f"started again in {(restarts.due_at or now) - now:g} s"
        _log.warning("%s died (%s): %s", name, cause_of(code), what)

    # ── seeing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look(self, stage: str) -> None:
        """Wait a moment, see how things stand, show it. Raises :class:`RunFailed` when somebody wants an end."""
        self._pause.wait(0.0 if stage.startswith("preparing") else POLL_S)
        if self.stopping:
            raise RunFailed(
                f"{self.directory}: stopped by {self.stopping[0]} at round {self._round}; what was published is in "
                f"{self.directory / self.config.syncer.state}"
            )
        now = self._clock.now()
        self._sight.stage, self._sight.elapsed_s = stage, now - self._began
        if self._syncer is not None and now - self._asked_at >= STATUS_EVERY_S:
            self._asked_at = now
            self._ask()
            with suppress(GruppettoError, OSError):  # they are for show
                self._read_losses()
            self._write_processes()
        self._show(self._sight)

    def _ask(self) -> None:
        assert self._syncer is not None
        endpoint = find_endpoint(self.directory / self.config.syncer.state)
        if endpoint is None or endpoint.pid != self._syncer.process.pid:
            return
        # Otherwise it is busy, or dead, which its exit code says better.
        with suppress(GruppettoError):
            self._sight.status = fetch_status(endpoint.url, token=self._token)

    def _read_losses(self) -> None:
        path = self.directory / EVALUATION
        size = path.stat().st_size if path.exists() else 0
        if size > self._judged_bytes:
            self._judged_bytes = size
            # By round: a judge that was called anew begins with round 0 again.
            self._sight.losses = sorted({r.data["round"]: r.data["loss"] for r in _notes(path)}.items())

    def _write_processes(self) -> None:
        """processes.json, for ``gruppetto status RUNDIR``. Whole or not at all: a run does not die of a full disk."""
        learners = {name: self._described(child) for name, child in self._learners.items()}
        syncer = {SYNCER: self._described(self._syncer)} if self._syncer else {}
        self._sight.processes = {**syncer, **learners}
        content = json.dumps({"stage": self._sight.stage, **syncer, "learners": learners}, indent=2) + "\n"
        path = self.directory / "processes.json"
        new = path.with_name(".processes.json.new")
        try:
            new.write_text(content, encoding="utf-8")
            new.replace(path)
        except OSError as error:
            if not self._disk_failed:
                _log.warning("%s cannot be written (%s)", path, error.strerror)
            self._disk_failed = True

    def _described(self, child: Child) -> dict[str, Any]:
        restarts, state = self._restarts[child.name], child.state
        if restarts.due_at is not None:
            state = f"restarting in {max(0, math.ceil(restarts.due_at - self._clock.now()))} s"
        return {"pid": child.process.pid, "state": state, "restarts": restarts.count}

    @property
    def _phase(self) -> str:
        return "" if self._sight.status is None else str(self._sight.status["phase"])

    @property
    def _round(self) -> int:
        return 0 if self._sight.status is None else int(self._sight.status["round"])

    @property
    def _open_tokens(self) -> int:
        return 0 if self._sight.status is None else int(self._sight.status["tokens"]["open"])

    @property
    def _riding(self) -> bool:
        """Somebody rides, or is about to again."""
        hopeful = self._phase != "finished" and any(self._restarts[name].due_at is not None for name in self._learners)
        return hopeful or any(child.running for child in self._learners.values())

    @property
    def _state(self) -> Path:
        return self.directory / self.config.syncer.state

    @property
    def _trace(self) -> Path:
        return self.directory / "trace.jsonl"

    # ── failing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_syncer(self) -> None:
        assert self._syncer is not None
        if not self._syncer.running and self._restarts[SYNCER].due_at is None:
            why = self._restarts[SYNCER].given_up
            because = f" ({why})" if self._restarts[SYNCER].count else ""
            raise self._failure(f"the syncer is {self._syncer.state}{because}", [self._syncer])

    def _call_judge(self) -> None:
        judge = ["-m", "gruppetto.launch.judge", str(self.directory), str(self.cache)]
        log = self.directory / "judge.log"
        self._judge = start("judge", judge, log, threads=self.config.train.threads)
        self._judges += 1

    def _check_judge(self) -> bool:
        """Whether a judge is at work. One that has died is replaced, up to a bound."""
        assert self._judge is not None
        if self._judge.state not in ("running", "done") and self._judges < MAX_JUDGES:
            _log.warning("the judge is %s: another one is called", self._judge.state)
            stop([self._judge])
            self._call_judge()
            return True
        return self._judge.running

    def _failure(self, what: str, guilty: Sequence[Child]) -> GruppettoError:
        """The error of children that ended: their own last line, as a mistake to mend if they call it one."""
        first = next((child for child in guilty if child.process.returncode == UserError.exit_code), guilty[0])
        if first.process.returncode == UserError.exit_code:
            return UserError(last_words(first).removeprefix("gruppetto: "))
        return self._failed(what, first)

    def _failed(self, what: str, child: Child) -> RunFailed:
        said = last_words(child).removeprefix("gruppetto: ")
        return RunFailed(f"{self.directory}: {what} at round {self._round}: {said} (see {child.log})")

    def _merge_notes(self, path: Path) -> None:
        """The trace alone tells the whole run, once nobody else writes to it."""
        if not path.exists() or not self._trace.exists():
            return
        with TraceWriter(self._trace, {"notes": path.stem}) as trace:
            for record in list(_notes(path)):
                trace.note(record.t, record.who, record.name, **record.data)
        if not trace.broken:
            path.unlink()


def _notes(path: Path) -> Iterator[Record]:
    return (line for line in read_trace(path) if isinstance(line, Record) and line.kind == "note")


@contextmanager
def _signals(stopping: list[str]) -> Iterator[None]:
    """SIGINT and SIGTERM end the run in good order. Only the main thread of a process hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        stopping.append(signal.Signals(number).name)

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
