"""A prepared loop, its accumulation, and the learner in Accelerate's own checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import gruppetto
from gruppetto.attach.integrations.accelerate import attach
from gruppetto.errors import StateError

Make = Callable[..., Any]
Start = Callable[..., Any]
SMALL = {"num_fragments": 3, "sync_period": 3, "outer": "finetune", "uplink": "fp32"}


def prepared(toy: Make, seed: int = 0) -> tuple[Accelerator, Any, Any, Any]:
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = toy(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [model.batch(index) for index in range(32)]
    loader = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def test_accumulated_passes_are_one_step_and_its_checkpoints_hold_the_learner(
    syncer: Start, toy: Make, tmp_path: Path
) -> None:
    running = syncer(**SMALL)
    how = {"syncer": running.url, "quiet": True, "tokens_per_step": 32, "max_run_ahead": 0, "donate": None}
    accelerator, model, optimizer, loader = prepared(toy)
    with attach(accelerator, model, optimizer, name="a", **how) as learner:
        for ids, labels in learner.until_finished(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(ids, labels))
                optimizer.step()
                optimizer.zero_grad()
        assert learner.metrics()["gruppetto/steps"] == 16, "half as many as passes"
        assert learner.metrics()["gruppetto/tokens"] == 16 * 32
        accelerator.save_state(str(tmp_path / "saved"))
        saved = learner.state_dict()
    accelerator, model, optimizer, _ = prepared(toy, seed=1)
    again = attach(accelerator, model, optimizer, name="a", **how)
    accelerator.load_state(str(tmp_path / "saved"))
    with again:
        pulled = again.metrics()["gruppetto/bytes_down"]
        assert all(torch.equal(again.state_dict()[key], saved[key]) for key in saved if key.startswith("base."))
    assert pulled == 0, "nothing had changed"
    (tmp_path / "saved" / "gruppetto" / "part.json").write_text("{}")
    accelerator, model, optimizer, _ = prepared(toy)
    attach(accelerator, model, optimizer, **how)
    with pytest.raises(StateError, match="damaged"):
        accelerator.load_state(str(tmp_path / "saved"))


def test_a_plain_learner_takes_what_was_prepared(syncer: Start, toy: Make) -> None:
    _, model, optimizer, loader = prepared(toy)
    with gruppetto.Learner(model, optimizer, syncer=syncer(**SMALL).url, quiet=True, tokens_per_step=16) as learner:
        model(*next(iter(loader))).backward()
        optimizer.step()
        assert learner.metrics()["gruppetto/steps"] == 1
