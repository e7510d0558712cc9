"""The learners of a run: started, struck on purpose, and started again when they die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gruppetto.config import RunConfig
from gruppetto.launch.children import LEFT_IN_ORDER, Child, stop
from gruppetto.launch.engine import Engine
from gruppetto.launch.revival import Revival
from gruppetto.launch.routes import Routes
from gruppetto.launch.sight import Sight
from gruppetto.launch.strike import Strike
from gruppetto.report.rundir import RUN

__all__ = ["Learners"]


class Learners:
    """The processes of the learners of ``config`` by name. ``syncer``: where they find it, without detours."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        *,
        cache: Path,
        routes: Routes,
        syncer: str,
        revival: Revival,
        strike: Strike | None,
        parts: Mapping[str, Path],
        engine: Engine,
    ) -> None:
        self._config, self._directory, self._cache = config, directory, cache
        self._engine, self._extras = engine, frozenset(config.extras)
        self._routes, self._syncer, self._revival = routes, syncer, revival
        self._parts = dict(parts)
        """Which learners begin with a part. Once such a one has taken part, its own checkpoints are newer."""
        self.strike = strike
        self.children: dict[str, Child] = {}

    def begin(self, name: str) -> None:
        """A process for this learner, its first or another one."""
        syncer = self._routes.syncer_for(name, self._syncer)
        verb = ["learner", str(self._directory / RUN), "--syncer", syncer]
        verb += ["--name", name, "--cache", str(self._cache)]
        for setting in self._config.group_of(name).set:
            verb += ["--set", setting]
        if name in self._parts:
            verb += ["--from", str(self._parts[name])]
        command = self._routes.command(name, [*verb, "--follow-parent"])
        log = self._directory / "learners" / name / "learner.log"
        self.children[name] = self._engine.start(name, command, log, threads=self._config.train.threads)
        self._revival.started(name)

    def strike_if_due(self, round: int) -> None:
        strike = self.strike
        if strike is not None and round >= strike.round:
            self.strike = None
            self.children[strike.learner].process.kill()

    def mend(self, sight: Sight, ask: Callable[[], None]) -> None:
        """See who has died, and start again whose time has come. ``ask`` makes ``sight`` as fresh as it can be."""
        revival = self._revival
        for name, child in list(self.children.items()):
            if child.running and sight.is_live(name):
                revival.took_part(name)
                self._parts.pop(name, None)
            if revival.newly_dead(child):
                ask()
                # One that has left had nothing to come back to, and a finished run needs none any more.
                left = child.process.returncode in LEFT_IN_ORDER
                if left and child.process.evicted and not sight.finished:
                    stop([child])
                    self.begin(name)  # it waits for another machine
                elif not left and not sight.finished:
                    revival.mourn(name, child, name)
            if revival.is_due(name) and not sight.finished:
                revival.make_way(name, child)
                self.begin(name)

    def begin_all(self) -> None:
        """Those who belong to the run, and those who ride along when there is room."""
        for name in (*(entry.name for entry in self._config.learners), *self._config.extras):
            self.begin(name)

    def riding(self, sight: Sight) -> bool:
        """Somebody rides, or is about to again. Whoever waits for a machine does not hold up a finished run, and the
        hope for extra learners is none."""
        if any(child.running and not child.process.waits for child in self.children.values()):
            return True
        base = [name for name in self.children if name not in self._extras]
        waiting = any(self.children[name].running or self._revival.hopes_for(name) for name in base)
        return waiting and not sight.finished
