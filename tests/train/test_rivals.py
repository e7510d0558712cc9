"""The rivals in one process: they learn, and each is the algorithm it is named after."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.log import TrainLog
from gruppetto.train.model import build
from gruppetto.train.rivals import SynchronousDiloco, lockstep_data_parallel, single
from gruppetto.train.setting import TrainSetting
from gruppetto.train.step import train_step


def log_at(path: Path) -> TrainLog:
    return TrainLog(path, lambda: 0.0)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_single_learns(setting: TrainSetting, data: Data, tmp_path: Path) -> None:
    with log_at(tmp_path / "log") as log:
        _, found = single(setting, data, rounds=200, log=log)
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    evaluations = [record["loss"] for record in records if record["kind"] in ("eval", "end")]
    assert len(evaluations) == 1 + 200 // setting.eval_every_rounds
    assert evaluations[0] == pytest.approx(5.545, abs=0.1)  # ln 256: it knows nothing
    assert evaluations[-1] == found.loss
    assert found.loss < 1.5
    assert records[-1]["kind"] == "end"
    assert records[-1]["tokens"] == 200 * setting.tokens_per_step
    assert [r["round"] for r in records if r["kind"] == "train"] == list(range(5, 201, 5))


def test_a_run_is_a_function_of_its_setting(setting: TrainSetting, data: Data, tmp_path: Path) -> None:
    with log_at(tmp_path / "log") as log:
        runs = [
            flat(single(asked, data, rounds=5, log=log)[0])
            for asked in (setting, setting, setting.seeded(1), replace(setting, seed=1))
        ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[3])


def test_data_parallel_is_one_learner_with_all_the_batches(setting: TrainSetting, data: Data, tmp_path: Path) -> None:
    """The union of M slots' windows in one large batch has the same gradient as the average over M."""
    num_learners, rounds = 3, 6
    with log_at(tmp_path / "log") as log:
        model, _ = lockstep_data_parallel(setting, data, num_learners=num_learners, rounds=rounds, log=log)
    large = build(setting.model, data.tokenizer.vocab_size)
    optimizer = adamw(large, setting.inner)
    slots = [Batches.of(data, setting, slot=slot) for slot in range(num_learners)]
    for round in range(rounds):
        ids = torch.cat([next(slot)[0] for slot in slots])
        rate = learning_rate(setting.inner, round, rounds)
        train_step(large, optimizer, (ids, ids), rate=rate, clip_norm=setting.inner.clip_norm)
    torch.testing.assert_close(flat(model), flat(large), rtol=0, atol=2e-4)


def test_diloco_is_its_textbook() -> None:
    """Against float64 lists of numbers, over several periods and a last one cut short, which is a plain average."""
    rate, momentum, period, steps = 0.7, 0.9, 3, 8
    generator = torch.Generator().manual_seed(0)
    learners = [nn.Linear(4, 3) for _ in range(2)]
    for parameter, other in zip(learners[0].parameters(), learners[1].parameters(), strict=True):
        other.data.copy_(parameter.data)
    moves = torch.randn(steps, 2, 15, generator=generator)

    theta, buffer = flat(learners[0]).double(), torch.zeros(15, dtype=torch.float64)
    local = [theta.clone(), theta.clone()]
    for step in range(1, steps + 1):
        for m in range(2):
            local[m] = local[m] + moves[step - 1, m].double()
        if step == steps:
            theta = (local[0] + local[1]) / 2
        elif step % period == 0:
            delta = theta - (local[0] + local[1]) / 2
            buffer = momentum * buffer + delta
            theta = theta - rate * (delta + momentum * buffer)
            local = [theta.clone(), theta.clone()]

    deltas: list[Tensor] = []

    def first_pass(delta: Tensor) -> None:
        deltas.append(delta.clone())

    def second_pass(delta: Tensor) -> None:
        delta.copy_((delta + deltas[-1]) / 2)

    # Two learners in one process: the first only shows its delta, the second averages and goes on for both.
    shown = SynchronousDiloco(learners[0], sync_period=period, outer_rate=0.0, outer_momentum=0.0, average=first_pass)
    outer = SynchronousDiloco(
        learners[1], sync_period=period, outer_rate=rate, outer_momentum=momentum, average=second_pass
    )
    for step in range(1, steps + 1):
        for m, learner in enumerate(learners):
            pieces = moves[step - 1, m].split([p.numel() for p in learner.parameters()])
            for parameter, piece in zip(learner.parameters(), pieces, strict=True):
                parameter.data += piece.view_as(parameter)
        shown.after_step(step, last=step == steps)
        outer.after_step(step, last=step == steps)
        if step % period == 0 or step == steps:
            learners[0].load_state_dict(learners[1].state_dict())
            shown.start = flat(learners[1])
    torch.testing.assert_close(flat(learners[1]).double(), theta, rtol=1e-5, atol=1e-5)


def test_a_run_of_diloco_that_ends_within_a_period_ends_with_the_mean() -> None:
    """By hand: one number, which the learners of the mean move by −1 in each step; η = 0.7, μ = 0.9, H = 2."""
    model = nn.Linear(1, 1, bias=False)
    ended = {}
    for steps in (2, 3, 4):
        model.weight.data.fill_(10.0)
        outer = SynchronousDiloco(model, sync_period=2, outer_rate=0.7, outer_momentum=0.9, average=lambda delta: None)
        for step in range(1, steps + 1):
            model.weight.data -= 1
            outer.after_step(step, last=step == steps)
        with outer.global_model():
            ended[steps] = model.weight.item()
        assert ended[steps] == model.weight.item()
    # Δ = 2, b = 2: 10 − 0.7 · (2 + 0.9 · 2). Then one step, as it is. Or Δ = 2, b = 0.9 · 2 + 2 = 3.8.
    assert ended == pytest.approx({2: 7.34, 3: 6.34, 4: 7.34 - 0.7 * (2 + 0.9 * 3.8)})


def test_the_global_model_of_diloco_is_the_agreed_one() -> None:
    model = nn.Linear(2, 2)
    agreed = flat(model)
    outer = SynchronousDiloco(model, sync_period=5, outer_rate=1.0, outer_momentum=0.0, average=lambda delta: None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    outer.after_step(4, last=False)
    with outer.global_model():
        assert torch.equal(flat(model), agreed)
    torch.testing.assert_close(flat(model), agreed + 1)
    # One learner, η = 1, μ = 0: the outer step is no step at all.
    outer.after_step(5, last=False)
    torch.testing.assert_close(flat(model), agreed + 1)
