"""What there is to see of a local run, and the file in which anybody can look it up."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gruppetto.report.rundir import PROCESSES

__all__ = ["ProcessFile", "Sight"]

_log = logging.getLogger("gruppetto.launch")


@dataclass(slots=True, kw_only=True)
class Sight:
    """What there is to see of a local run at one moment."""

    elapsed_s: float = 0.0
    stage: str = "preparing"
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """pid, state and number of restarts of the syncer in charge and of every learner, by name."""
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The same of the syncers in charge of all shards but the first."""
    standby: dict[str, Any] | None = None
    """The same of the syncer in waiting; None in a run without one."""
    status: dict[str, Any] | None = None
    """The syncer's account of itself, as fresh as it could be had."""
    page: str = ""
    """The address of the syncer's page, of the one in charge; "" until it has been heard."""
    silent: str = ""
    """What the syncer is doing while it does not answer; "" while it does. ``status`` is an old one then."""
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(round, held-out loss of the global model)."""

    @property
    def phase(self) -> str:
        return "" if self.status is None else str(self.status["phase"])

    @property
    def finished(self) -> bool:
        """The last round is closed."""
        return self.phase == "finished"

    @property
    def round(self) -> int:
        return 0 if self.status is None else int(self.status["round"])

    @property
    def open_tokens(self) -> int:
        return 0 if self.status is None else int(self.status["tokens"]["open"])

    def is_live(self, learner: str) -> bool:
        """The syncer counts on it."""
        known = {} if self.status is None else self.status.get("learners", {}).get(learner, {})
        return bool(known.get("state") == "live")


class ProcessFile:
    """processes.json, for ``gruppetto status RUNDIR``. Whole or not at all: a run does not die of a full disk."""

    def __init__(self, directory: Path, syncer: str) -> None:
        self._path, self._syncer = directory / PROCESSES, syncer
        self._disk_failed = False

    def write(self, sight: Sight) -> None:
        learners = {name: told for name, told in sight.processes.items() if name != self._syncer}
        others = {
            name: told
            for name, told in ((self._syncer, sight.processes.get(self._syncer)), ("standby", sight.standby))
            if told is not None
        }
        content = json.dumps({"stage": sight.stage, **others, **sight.shards, "learners": learners}, indent=2) + "\n"
        new = self._path.with_name(f".{PROCESSES}.new")
        try:
            new.write_text(content, encoding="utf-8")
            new.replace(self._path)
        except OSError as error:
            if not self._disk_failed:
                _log.warning("%s cannot be written (%s)", self._path, error.strerror)
            self._disk_failed = True
