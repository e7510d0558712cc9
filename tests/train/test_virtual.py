"""Virtual training runs the whole algorithm on real tensors, and the same way every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gruppetto.errors import RunFailed, SettingError, StateError
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.cut import cut
from gruppetto.trace.log import TraceWriter
from gruppetto.train.data import Data
from gruppetto.train.log import TrainLog
from gruppetto.train.rivals import single
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import VirtualRun, VirtualSetting, train_virtually

ROUNDS = 24


def protocol(**change: Any) -> ProtocolSetting:
    return ProtocolSetting(
        **{"num_learners": 3, "num_slots": 4, "num_fragments": 6, "sync_period": 6, "rounds": ROUNDS, **change}  # type: ignore[arg-type]
    )


def test_it_learns_with_everybody_and_every_token_is_accounted_for(setting: TrainSetting, data: Data) -> None:
    result = train_virtually(setting, data, protocol(), VirtualSetting(step_s=(1.0, 1.0, 2.0)))
    first, last = result.evaluations[0][2].loss, result.evaluations[-1][2].loss
    assert last < 0.85 * first
    ledger = result.world.syncer.ledger
    assert ledger.balances()
    assert all(ledger.merged_by[name] > 0 for name in ("learner-0", "learner-1", "learner-2"))
    assert result.participation > 0.8
    assert "below 2000" in result.outer_reason


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(setting: TrainSetting, data: Data) -> None:
    first, again = (train_virtually(setting, data, protocol()) for _ in range(2))
    other = train_virtually(setting.seeded(1), data, protocol())
    for ours, theirs in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert first.world.closed == again.world.closed
    assert other.loss != first.loss


@pytest.mark.parametrize("sync_period", [1, 4])
def test_one_learner_with_a_plain_outer_step_is_plain_adamw(
    setting: TrainSetting, data: Data, tmp_path: Path, sync_period: int
) -> None:
    """M = 1, η = 1, μ = 0, and ``carry`` for the work done while a fragment is in flight."""
    virtual = VirtualSetting(outer=OuterSetting(optimizer="sgd", lr=1.0, momentum=0.0), uplink="fp32", jitter=0.0)
    alone = protocol(num_learners=1, sync_period=sync_period, num_fragments=4, overlap_steps=0, apply="carry")
    decoupled = train_virtually(setting, data, alone, virtual)
    with TrainLog(tmp_path / "single.jsonl", clock=lambda: 0.0) as log:
        # The last round closes on what was learnt up to its step; with H = 4, other fragments a few steps earlier.
        plain, found = single(setting, data, rounds=ROUNDS, log=log)
    if sync_period == 1:
        for ours, theirs in zip(decoupled.model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert decoupled.loss == pytest.approx(found.loss, rel=1e-4 if sync_period == 1 else 0.05)


def test_learners_cut_the_model_where_the_syncer_does_however_many_fragments_are_asked_for(
    setting: TrainSetting, data: Data
) -> None:
    anew = 0
    for asked in range(1, 60):
        made = VirtualRun(setting, data, protocol(num_fragments=asked, num_learners=1), VirtualSetting())
        ours, (learner,) = made.syncer.parts, made.learners.values()
        theirs = learner._tensors._holdings.model.fragmentation  # type: ignore[attr-defined]
        assert theirs is not None and theirs.fragmentation_hash == ours.fragmentation_hash
        again = cut(made._flat.layout, ours.num_fragments)
        anew += again.fragmentation_hash != ours.fragmentation_hash
    assert anew, "by as many as came of it the model is cut in other places"


def test_settings_that_cannot_be_run_are_refused(setting: TrainSetting, data: Data) -> None:
    with pytest.raises(SettingError, match="needs an end"):
        train_virtually(setting, data, protocol(rounds=None))


def test_more_learners_than_slots_get_slots(setting: TrainSetting, data: Data) -> None:
    few = replace(setting, data=replace(setting.data, slots=1))
    result = train_virtually(few, data, protocol(rounds=2))
    assert len(result.world.closed) == 2


def test_a_run_that_stops_says_what_it_waits_for(setting: TrainSetting, data: Data, monkeypatch: Any) -> None:
    monkeypatch.setattr("gruppetto.train.virtual.NEVER_S", 5.0)
    with pytest.raises(RunFailed, match="stopped at round"):
        train_virtually(setting, data, protocol())


def unequal(apply: str, rounds: int = ROUNDS) -> tuple[ProtocolSetting, VirtualSetting]:
    """Four learners of different pace and jitter, whose fragments are on their way at any moment; with ``carry`` so far
    away that two rounds are in flight."""
    in_flight, latency_s = (2, 0.6) if apply == "carry" else (1, 0.3)
    four = protocol(num_learners=4, apply=apply, rounds=rounds, rounds_in_flight=in_flight)
    uplink = "int4" if apply == "overwrite" else "bf16"  # what is left unsaid has to be saved too
    return four, VirtualSetting(step_s=(1.0, 1.18, 0.7, 1.9), jitter=0.1, latency_s=latency_s, uplink=uplink)


@pytest.mark.parametrize("apply", ["overwrite", "blend", "carry"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    setting: TrainSetting, data: Data, tmp_path: Path, apply: str
) -> None:
    """Weights, losses, and the whole tape; the checkpoint is on disk, and nothing else is left of the first half."""
    four, virtual = unequal(apply)
    traces = [tmp_path / f"{name}.jsonl" for name in ("whole", "resumed")]
    places = {7: tmp_path / "seven", 13: tmp_path / "thirteen"}
    with TraceWriter(traces[0], {}) as trace:
        whole = train_virtually(setting, data, four, virtual, trace=trace, checkpoints=places)
    seen: list[int] = []
    with TraceWriter(traces[1], {}) as trace:
        resumed = train_virtually(setting, data, four, virtual, trace=trace, resume=places[13], on_round=seen.append)
    assert seen == list(range(14, ROUNDS + 1))
    for ours, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert whole.evaluations == resumed.evaluations
    assert traces[0].read_bytes() == traces[1].read_bytes()
    again = train_virtually(setting, data, four, virtual, resume=places[7])
    assert again.loss == whole.loss
    assert whole.loss == train_virtually(setting, data, four, virtual).loss  # and the checkpoints changed nothing


def test_something_is_on_its_way_when_a_virtual_run_is_saved(setting: TrainSetting, data: Data, tmp_path: Path) -> None:
    """Otherwise the test above would say less than it seems to."""
    four, virtual = unequal("carry", rounds=14)
    train_virtually(setting, data, four, virtual, checkpoints={13: tmp_path / "place"})
    rest = json.loads((tmp_path / "place" / "part.json").read_bytes())
    on_their_way = [is_contribution for _, is_contribution in rest["boxes"].values()]
    assert on_their_way
    for learner in rest["learners"].values():
        vectors = dict(learner["state"]["pairs"])["vectors"]
        assert {name.split(".")[0] for name, _ in vectors["pairs"]} >= {"base", "snapshot"}


def test_a_virtual_checkpoint_of_something_else_is_refused(setting: TrainSetting, data: Data, tmp_path: Path) -> None:
    four, virtual = unequal("overwrite", rounds=4)
    place = tmp_path / "place"
    train_virtually(setting, data, four, virtual, checkpoints={2: place})
    with pytest.raises(StateError, match="was saved with other settings of protocol"):
        train_virtually(setting, data, replace(four, min_quorum=2), virtual, resume=place)
    with pytest.raises(StateError, match="holds no part of a checkpoint"):
        train_virtually(setting, data, four, virtual, resume=tmp_path / "nowhere")
    told = json.loads((place / "part.json").read_bytes())
    (place / "part.json").write_text(json.dumps({**told, "digest": "0"}))
    with pytest.raises(StateError, match="this version decides otherwise"):
        train_virtually(setting, data, four, virtual, resume=place)
    damaged = bytearray((place / "part.safetensors").read_bytes())
    damaged[-1] ^= 1
    (place / "part.safetensors").write_bytes(damaged)
    with pytest.raises(StateError, match="is damaged"):
        train_virtually(setting, data, four, virtual, resume=place)
