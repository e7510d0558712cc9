"""A virtual run, cut by markers: the protocol's own checkpoint (:mod:`gruppetto.protocol.marking`) with real tensors.

Unlike :mod:`gruppetto.train.virtual_sleep`, which writes one moment of a world that stands still, this is what a real
run does: every part is saved at its own time, nothing on its way is recorded, and the resumed world begins with hellos.
Where the schedule is fixed (equal learners in lock-step, K = M) the result is the same, value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.actions import Checkpoint, CheckpointClosed, SaveState
from gruppetto.protocol.events import TakeCheckpoint
from gruppetto.protocol.membership import MemberPhase
from gruppetto.protocol.state import LearnerState, SyncerState, without_the_absent
from gruppetto.protocol.units import LearnerId
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.replay import replay
from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import VirtualRun, VirtualSetting

ROUNDS = 20
LOCK_STEP = VirtualSetting(step_s=(1.0,), jitter=0.0)
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


def together(apply: str, learners: int = 3) -> ProtocolSetting:
    return ProtocolSetting(
        num_learners=learners,
        min_quorum=learners,
        num_slots=4,
        num_fragments=6,
        sync_period=4,
        rounds=ROUNDS,
        apply=apply,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("apply", ["overwrite", "blend", "carry"])
@pytest.mark.parametrize("round", [1, 9])
def test_lock_step_goes_on_as_if_nothing_had_happened(
    setting: TrainSetting, data: Data, apply: str, round: int
) -> None:
    make = partial(VirtualRun, setting, data, together(apply), LOCK_STEP)
    whole = make().finish()
    cut_run = make()
    cut = cut_by_markers(cut_run, round)
    assert cut.closed is not None and len(cut.closed.parts) == 3 and not cut.closed.left_out
    went_on = cut_run.finish()
    resumed_run = resume_from_cut(make, cut)
    resumed = resumed_run.finish()
    for other in (went_on, resumed):  # nobody waited for the cut, and nothing is lost by going on from it
        for ours, theirs in zip(whole.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    ledger, before = resumed.world.syncer.ledger, whole.world.syncer.ledger
    assert ledger.balances() and ledger.totals.lost == 0
    assert (ledger.consumed, ledger.totals.merged) == (before.consumed, before.totals.merged)
    assert all(member.incarnation == 1 for member in resumed.world.syncer.members)
    assert resumed.world.syncer.cursors == whole.world.syncer.cursors


@pytest.mark.parametrize("in_flight", [1, 2])
def test_unequal_learners_go_on_with_nothing_lost_and_nothing_twice(
    setting: TrainSetting, data: Data, tmp_path: Path, in_flight: int
) -> None:
    """Their schedule is not fixed: it begins anew with the resumption. The books and the tape hold all the same."""
    virtual = VirtualSetting(step_s=(1.0, 1.18, 1.9), jitter=0.1, latency_s=0.3 * in_flight)
    protocol = replace(together("overwrite"), rounds_in_flight=in_flight)
    make = partial(VirtualRun, setting, data, protocol, virtual)
    whole = make().finish()
    cut = cut_by_markers(make(), 9)
    with TraceWriter(tmp_path / "trace.jsonl", {}) as trace:
        resumed = resume_from_cut(partial(make, trace=trace), cut).finish()
    assert resumed.loss == pytest.approx(whole.loss, rel=0.05)
    syncer = resumed.world.syncer
    assert syncer.ledger.balances() and syncer.ledger.totals.lost == 0
    assert all(member.incarnation == 1 and member.phase is MemberPhase.LIVE for member in syncer.members)
    for name, state in cut.states.items():
        assert resumed.world.learners[name].core.cursor > state.cursor
        assert resumed.world.learners[name].core.tokens > state.tokens


def test_a_trace_with_a_cut_replays(setting: TrainSetting, data: Data, tmp_path: Path) -> None:
    from gruppetto.trace.schema import core_header

    with TraceWriter(tmp_path / "trace.jsonl", {}) as trace:
        run = VirtualRun(setting, data, together("overwrite"), LOCK_STEP, trace=trace)
        core = run.world.syncer
        made_of = core_header(core.setting, run_id=core.run_id, layout_hash=core.layout_hash, epoch=core.epoch)
        trace.header(made_of)
        cut_by_markers(run, 5)
        run.finish()
    result = replay(tmp_path / "trace.jsonl")
    assert result.identical, str(result.first_difference)
