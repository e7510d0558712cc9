"""What of the syncer must survive a crash."""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.units import Epoch, Incarnation, LearnerId, Round, Version

__all__ = ["MemberState", "SyncerState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A learner as the syncer remembers it across restarts."""

    learner: LearnerId
    session: str
    incarnation: Incarnation
    slot: int
    """The data slot it holds; once it has left, the one that it held."""
    gone: bool
    """Left, or replaced; its ledger account is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerState:
    """Everything that decides, and no tensor. The tensors are persisted beside it, in one commit."""

    run_id: str
    layout_hash: str
    epoch: Epoch
    round: Round
    """The newest closed round."""
    versions: tuple[Version, ...]
    """Empty until seeded."""
    members: tuple[MemberState, ...]
    cursors: tuple[tuple[int, int], ...]
    """(slot, first batch that no accepted contribution has used)."""
    ledger: Ledger
    rejected: tuple[tuple[str, int], ...] = ()
