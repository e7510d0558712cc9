"""What of a core must survive its process: of the syncer after every round, of a learner in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.units import NO_EPOCH, UNBORN, Epoch, Fragment, Incarnation, LearnerId, Round, Version

__all__ = ["LearnerState", "MemberState", "OlderValue", "SyncerState", "without_the_absent"]


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
    awaited: bool = False
    """The whole run was resumed with this life in it, which has not come back yet: in a new process, once."""


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
    clipped: tuple[tuple[str, int], ...] = ()
    yardsticks: tuple[tuple[float, ...], ...] = ()
    """The usual norm of each piece of each fragment, 0 where it is not known (:mod:`gruppetto.protocol.norms`)."""
    value_norms: tuple[tuple[float, ...], ...] = ()
    """The norms of the values that the run began with."""
    usual_share: float = 0.0
    """Of its values that a contribution usually changes a fragment by; 0 while it is not known."""
    usual_weight: float = 0.0
    """The usual weight of a contribution; 0 while it is not known."""
    reserve: int = 0
    """Rounds that may be published after this one before the next commit."""
    went_back: tuple[tuple[Epoch, Round], ...] = ()
    """(e, t): the run was resumed from a checkpoint of round t; what lives before e made after that is not of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderValue:
    """The newest good value of a fragment whose newest value of all is damaged on disk."""

    fragment: Fragment
    version: Version
    merged: int
    """Fragment-tokens that are merged in it, by the ledger of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerState:
    """What a learner's checkpoint must hold of its core. The last four name the life that it was saved in."""

    run_id: str
    clock: int
    newest_round: Round
    fragments: tuple[tuple[Version, int, int], ...]
    """(base version, c_steps, c_tokens) of each fragment."""
    steps: int
    tokens: int
    cursor: int
    session: str = ""
    incarnation: Incarnation = UNBORN
    slot: int = 0
    epoch: Epoch = NO_EPOCH


def without_the_absent(state: SyncerState, present: Mapping[LearnerId, Incarnation], epoch: Epoch) -> SyncerState:
    """``state`` for a run that is resumed with these lives only: they are awaited, all other accounts are closed.

    ``epoch`` is above all that may have been claimed after the cut, and below that of the life which begins now.
    The open work of those is lost, their data slots are free again, and whoever comes under such a name begins a new
    life. What was promised by then is broken when the syncer begins, as after its death.
    """
    ledger = state.ledger.copy()
    members = []
    for member in state.members:
        absent = present.get(member.learner) != member.incarnation
        if absent and member.learner in ledger.accounts:
            ledger.close_account(member.learner, lost=True, why="died")
        members.append(replace(member, gone=member.gone or absent, awaited=not (member.gone or absent)))
    went_back = (*state.went_back, (epoch, state.round))
    return replace(state, members=tuple(members), ledger=ledger, went_back=went_back)
