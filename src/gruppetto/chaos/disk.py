"""The syncer's disk: one commit at a time, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.chaos.truth import Content
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch

__all__ = ["Commit", "Disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a restart begins from."""

    state: SyncerState
    contents: tuple[Content, ...]
    """Θ, by fragment."""


class Disk:
    """Survives every crash. A commit that is under way when the syncer dies never happened."""

    def __init__(self) -> None:
        self.commit: Commit | None = None
        self.epoch = Epoch(0)
        """The newest that was claimed."""
        self.failing_until = 0.0

    def claim_epoch(self) -> Epoch:
        """A new life begins; no other will ever have its epoch."""
        self.epoch = Epoch(self.epoch + 1)
        return self.epoch

    def write(self, now: float, commit: Commit) -> bool:
        """The end of a commit; False if the disk refuses it."""
        if now < self.failing_until:
            return False
        self.commit = commit
        return True
