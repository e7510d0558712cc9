"""Whoever gives routes decides how processes are called, at their first start and at every later one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gruppetto.config import load_run
from gruppetto.launch.local import _LocalRun
from gruppetto.launch.routes import PlainRoutes
from gruppetto.runtime.clock import ManualClock


class Sayings:
    """Processes that write down how they were called, and die of it or not."""

    def __init__(self, directory: Path, then: str = "") -> None:
        self._directory, self._then = directory, then

    def command(self, name: str, verb: Sequence[str]) -> list[str]:
        code = f"import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + chr(10)); {self._then}"
        return ["-c", code, str(self._directory / f"{name}.called"), *verb]

    def syncer_for(self, learner: str, syncer: str) -> str:
        return f"http://detour-of-{learner}"

    def of(self, name: str) -> list[str]:
        return (self._directory / f"{name}.called").read_text(encoding="utf-8").splitlines()


def test_the_launcher_asks_for_every_command(tmp_path: Path) -> None:
    config = load_run(overrides={"run.num_learners": 2})
    routes = Sayings(tmp_path)
    run = _LocalRun(config, tmp_path, cache=tmp_path, clock=ManualClock(), show=lambda _: None, routes=routes)
    run._syncers.start()
    for entry in config.learners:
        run._learners.begin(entry.name)
    for child in (*run._syncers.children(), *run._learners.children.values()):
        child.process.wait()
    assert routes.of("syncer")[0].startswith(f"syncer {tmp_path}/run.toml --state {tmp_path}/syncer --trace")
    (called,) = routes.of("learner-1")
    assert called.startswith(f"learner {tmp_path}/run.toml --syncer http://detour-of-learner-1 --name learner-1")
    run.end()


def test_plain_routes_are_the_command_line_and_the_state_directory() -> None:
    assert PlainRoutes().command("anna", ["learner", "x"]) == ["-m", "gruppetto", "learner", "x"]
    assert PlainRoutes().syncer_for("anna", "state") == "state"
