"""A virtual run, cut by markers: the protocol's own checkpoint (:mod:`gruppetto.protocol.marking`) with real tensors.

Unlike :mod:`gruppetto.train.virtual_sleep`, which writes one moment of a world that stands still, this is what a real
run does: every part is saved at its own time, nothing on its way is recorded, and the resumed world begins with hellos.
Where the schedule is fixed (equal learners in lock-step, K = M) the result is the same, value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gruppetto.protocol.actions import Checkpoint, CheckpointClosed, SaveState
from gruppetto.protocol.events import TakeCheckpoint
from gruppetto.protocol.state import LearnerState, SyncerState, without_the_absent
from gruppetto.protocol.units import LearnerId
from gruppetto.train.virtual import VirtualRun

__all__ = ["VirtualCut", "cut_by_markers", "resume_from_cut"]

SYNCER = "syncer"


@dataclass(slots=True, kw_only=True)
class VirtualCut:
    """All parts of a checkpoint, in memory."""

    closed: CheckpointClosed | None = None
    state: SyncerState | None = None
    states: dict[str, LearnerState] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


def cut_by_markers(run: VirtualRun, round: int) -> VirtualCut:
    """Go on until ``round`` is published, ask for a checkpoint, and go on until it is complete.

    ``run`` may go on from there: nobody has waited.
    """
    cut = VirtualCut()

    def part(who: str, action: Checkpoint | SaveState) -> None:
        if isinstance(action, Checkpoint):
            cut.state = action.state
            cut.said[who] = run.syncer.take_apart(who, cut.tensors)
        else:
            cut.states[who] = action.state
            cut.said[who] = run.learners[who].take_apart(who, cut.tensors, vectors=False)

    def closed(action: CheckpointClosed) -> None:
        cut.closed = action
        run.world.engine.stop()

    run.world.on_part, run.world.on_checkpoint = part, closed
    assert run.until(round)
    run.world.tell_syncer(TakeCheckpoint(mark=f"round-{round}"))
    run.until(None)
    assert cut.closed is not None and not cut.closed.why
    return cut


def resume_from_cut(make_run: Callable[..., VirtualRun], cut: VirtualCut) -> VirtualRun:
    """A new world that goes on from ``cut``; ``make_run`` makes it, given ``state`` and ``learner_states``."""
    assert cut.closed is not None and cut.state is not None
    lives = {LearnerId(name): life for name, life, _ in cut.closed.parts}
    states = {name: state for name, state in cut.states.items() if name in lives}
    run = make_run(state=without_the_absent(cut.state, lives, cut.state.epoch), learner_states=states)
    run.syncer.put_together(cut.said[SYNCER], cut.tensors)
    for name in states:
        run.learners[name].put_together(cut.said[name], cut.tensors)
    return run
