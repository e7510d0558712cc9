"""The learners of a local run: started, struck on purpose, and started again when they die."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gruppetto.config import RunConfig
from gruppetto.launch.children import LEFT_IN_ORDER, Child, start
from gruppetto.launch.revival import Revival
from gruppetto.launch.routes import Routes
from gruppetto.launch.sight import Sight
from gruppetto.launch.strike import Strike

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
    ) -> None:
        self._config, self._directory, self._cache = config, directory, cache
        self._routes, self._syncer, self._revival = routes, syncer, revival
        self._parts = dict(parts)
        """Which learners begin with a part. Once such a one has taken part, its own checkpoints are newer."""
        self.strike = strike
        self.children: dict[str, Child] = {}

    def begin(self, name: str) -> None:
        """A process for this learner, its first or another one."""
        syncer = self._routes.syncer_for(name, self._syncer)
        verb = ["learner", str(self._directory / "run.toml"), "--syncer", syncer]
        verb += ["--name", name, "--cache", str(self._cache)]
        if name in self._parts:
            verb += ["--from", str(self._parts[name])]
        command = self._routes.command(name, [*verb, "--follow-parent"])
        log = self._directory / "learners" / name / "learner.log"
        self.children[name] = start(name, command, log, threads=self._config.train.threads)
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
                # One that has left had nothing to come back to, and a finished run takes no learner in any more.
                if child.process.returncode not in LEFT_IN_ORDER and not sight.finished:
                    revival.mourn(name, child, name)
            if revival.is_due(name) and not sight.finished:
                revival.make_way(name, child)
                self.begin(name)

    def riding(self, sight: Sight) -> bool:
        """Somebody rides, or is about to again."""
        hopeful = not sight.finished and any(map(self._revival.hopes_for, self.children))
        return hopeful or any(child.running for child in self.children.values())
