"""A virtual run that survives its process: its state on disk now and then, and the newest one of them that is whole.

Saving changes nothing of what comes out, so when it is done may depend on the time that has passed.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from gruppetto.attach.part import read_files
from gruppetto.errors import StateError
from gruppetto.runtime.clock import Clock
from gruppetto.train.virtual import VirtualRun

__all__ = ["Keeper", "newest_saved"]

_log = logging.getLogger("gruppetto.virtual")

MOST_SHARE = 0.05
"""Of the time, spent in saving: what takes long is done less often."""
_NAME = re.compile(r"round-(\d+)")


class Keeper:
    """Saves a run in ``place`` every ``every_s`` seconds of ``clock``, and keeps the newest state."""

    def __init__(self, place: Path, clock: Clock, *, every_s: float) -> None:
        self._place, self._clock, self._every_s = place, clock, every_s
        self._due_s = clock.now() + every_s

    @property
    def is_due(self) -> bool:
        return self._clock.now() >= self._due_s

    def save(self, run: VirtualRun) -> None:
        """Write it beside the one before, which goes when the new one is whole. A run does not die of a full disk."""
        began_s = self._clock.now()
        older = _saved(self._place)
        try:
            run.save(self._place / f"round-{run.world.syncer.published_round}")
        except OSError as error:
            _log.warning("%s: this state is not saved (%s); the run goes on", self._place, error.strerror or error)
        else:
            for _, place in older:
                shutil.rmtree(place, ignore_errors=True)
        now = self._clock.now()
        self._due_s = now + (max(self._every_s, (now - began_s) / MOST_SHARE) if self._every_s else 0.0)


def newest_saved(place: Path) -> Path | None:
    """The newest state that is whole; None where there is none, and a run has to begin anew."""
    for _, saved in reversed(_saved(place)):
        try:
            read_files(saved)
        except StateError:
            continue  # the process died while it was written
        return saved
    return None


def _saved(place: Path) -> list[tuple[int, Path]]:
    """(round, where) of all, whole or not, in order."""
    named = [(match, path) for path in place.glob("round-*") if (match := _NAME.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in named)
