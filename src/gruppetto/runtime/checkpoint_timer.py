"""Checkpoints of the whole run that nobody has to ask for: how often, how they are called, and which of them may go."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gruppetto.errors import SettingError
from gruppetto.protocol.units import Epoch, Round
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.manifest import BY_TIMER, CHECKPOINTS, MANIFEST, Manifest, complete_checkpoints

__all__ = ["CheckpointTimer", "by_timer", "check_checkpoints", "name_by_timer", "remove_old"]

SHORTEST_S = 1.0
MOST_KEPT = 1000


def check_checkpoints(every_s: float | None, kept: int, shards: int) -> None:
    """Raises :class:`SettingError` for what cannot be done.

    >>> check_checkpoints(0.0, 2, 1)
    Traceback (most recent call last):
    ...
    gruppetto.errors.SettingError: syncer.checkpoint_every_s: is 0.0; use 1 or more seconds, or leave it out
    """
    if every_s is not None and not SHORTEST_S <= every_s < float("inf"):
        raise SettingError(
            f"is {every_s}", where="syncer.checkpoint_every_s", fix="use 1 or more seconds, or leave it out"
        )
    if every_s is not None and shards > 1:
        raise SettingError(
            f"the {shards} shards of a run cannot be cut at one moment",
            where="syncer.checkpoint_every_s",
            fix="leave it out, or use one syncer",
        )
    if not 1 <= kept <= MOST_KEPT:
        raise SettingError(f"is {kept}", where="syncer.checkpoints_kept", fix=f"use 1 to {MOST_KEPT}")


class CheckpointTimer:
    """When the next one is due, in seconds of the syncer's clock. A syncer that is started again goes on counting from
    the newest one on the disk, so that one which dies often takes checkpoints all the same.

    >>> timer = CheckpointTimer(60.0, age_s=50.0, now=0.0)
    >>> timer.due_at, timer.is_due(9.9), timer.is_due(10.0)
    (10.0, False, True)
    >>> timer.begin_anew(12.0)
    >>> timer.due_at
    72.0
    """

    def __init__(self, every_s: float | None, *, age_s: float, now: float) -> None:
        self._every_s = every_s
        self.due_at = None if every_s is None else now + min(every_s, max(0.0, every_s - age_s))

    @classmethod
    def of(cls, state: Path, every_s: float | None, now: float) -> CheckpointTimer:
        """For the state directory ``state``."""
        written_at = 0.0
        for place, _ in by_timer(state) if every_s is not None else ():
            with suppress(OSError):
                written_at = max(written_at, (place / MANIFEST).stat().st_mtime)
        return cls(every_s, age_s=wall_time_s() - written_at if written_at else 0.0, now=now)

    def is_due(self, now: float) -> bool:
        return self.due_at is not None and now >= self.due_at

    def begin_anew(self, now: float) -> None:
        self.due_at = None if self._every_s is None else now + self._every_s


def name_by_timer(epoch: Epoch, round: Round) -> str:
    """No two of a run are called alike, whatever it went back to: every life has an epoch of its own.

    >>> name_by_timer(Epoch(2), Round(140))
    'auto-2-140'
    """
    return f"{BY_TIMER}{epoch}-{round}"


def by_timer(state: Path) -> Sequence[tuple[Path, Manifest]]:
    """Complete checkpoints that were taken by themselves, the oldest first."""
    return complete_checkpoints(state, f"{BY_TIMER}*")


def remove_old(state: Path, kept: int) -> None:
    """Leave the newest ``kept`` of them, and nothing of those that were never completed. What cannot be removed stays.

    The manifest goes first: what is half removed is no checkpoint.
    """
    needed = {place for place, _ in by_timer(state)[-kept:]}
    for place in sorted((state / CHECKPOINTS).glob(f"{BY_TIMER}*")):
        if place not in needed:
            with suppress(OSError):
                (place / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
