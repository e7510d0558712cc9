"""Who of a run's processes has died, and who is started again when; a key is a learner's name or a syncer's seat."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from gruppetto.config import RunConfig
from gruppetto.errors import GruppettoError, UserError
from gruppetto.launch.children import NODE_LOST, Child, stop
from gruppetto.launch.deaths import cause_of, note_death
from gruppetto.launch.restart import Restarts
from gruppetto.runtime.clock import Clock

__all__ = ["Revival"]

_log = logging.getLogger("gruppetto.launch")


class Revival:
    """Every process is mourned once; how often and when each key is revived says
    :class:`~gruppetto.launch.restart.Restarts`."""

    def __init__(self, config: RunConfig, directory: Path, clock: Clock) -> None:
        most = config.launch.max_restarts if config.launch.restart else 0
        self._restarts: dict[object, Restarts] = defaultdict(lambda: Restarts(most=most))
        self._directory, self._clock = directory, clock
        self._began = clock.now()
        self._started_at: dict[object, float] = {}
        self._buried: set[Child] = set()

    def started(self, key: object) -> None:
        """A process of this key lives from now on."""
        self._started_at[key] = self._clock.now()

    def took_part(self, key: object) -> None:
        """It was of use once."""
        self._restarts[key].took_part()

    def newly_dead(self, child: Child) -> bool:
        """True once for each process that has ended."""
        if child.running or child in self._buried:
            return False
        self._buried.add(child)
        return True

    def mourn(self, key: object, child: Child, name: str, *, heir: str = "") -> None:
        """Note that ``name`` has died though it was needed. ``heir``: what the run does without it."""
        now, code, restarts = self._clock.now(), child.process.returncode, self._restarts[key]
        with suppress(GruppettoError, OSError):  # the log says it too
            note_death(self._directory, now - self._began, name, code)
        # Beside another one, what reads like a user's mistake may be a race for the authority that it has lost.
        why = GruppettoError.exit_code if heir and code == UserError.exit_code else code
        restarts.died(now, lived_s=now - self._started_at.get(key, now), code=why, blameless=code == NODE_LOST)
        again = "another one is started" if heir else "started again"
        what = restarts.given_up or f"{again} in {(restarts.due_at or now) - now:g} s"
        _log.warning("%s died (%s): %s", name, cause_of(code), f"{heir}; {what}" if heir else what)

    def is_due(self, key: object) -> bool:
        """It is time for another process."""
        return self._restarts[key].is_due(self._clock.now())

    def make_way(self, key: object, child: Child) -> None:
        """Another process takes the place of this one."""
        stop([child])
        self._restarts[key].started()

    def hopes_for(self, key: object) -> bool:
        """It is dead, and going to be started again."""
        return self._restarts[key].due_at is not None

    def given_up(self, key: object) -> str:
        """Why what was started again is so no more."""
        return self._restarts[key].given_up if self._restarts[key].count else ""

    def described(self, key: object, child: Child, *, doing: str = "running") -> dict[str, Any]:
        """pid, state and number of restarts."""
        restarts = self._restarts[key]
        state = doing if child.running and not child.process.waits else child.state
        if restarts.due_at is not None:
            state = f"restarting in {max(0, math.ceil(restarts.due_at - self._clock.now()))} s"
        return {"pid": child.process.pid, "state": state, "restarts": restarts.count}
