"""Cut by markers and resumed, a run with a fixed schedule comes to the same end, value by value."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.membership import MemberPhase
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.replay import replay
from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import VirtualRun, VirtualSetting
from gruppetto.train.virtual_cut import cut_by_markers, resume_from_cut

ROUNDS = 20
LOCK_STEP = VirtualSetting(step_s=(1.0,), jitter=0.0)


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
