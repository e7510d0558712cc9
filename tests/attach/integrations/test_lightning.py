"""The callback in the real Lightning Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning.pytorch as pl
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import gruppetto.data
from gruppetto import Learner
from gruppetto.attach.integrations.lightning import Callback
from gruppetto.attach.view import Place
from gruppetto.errors import SettingError
from gruppetto.launch.ask import fetch_model, fetch_status

Start = Callable[..., Any]
LOCK_STEP = {"num_fragments": 2, "sync_period": 2, "overlap_steps": 0, "outer": "finetune", "uplink": "fp32"}
ROW = 6


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, seed: int = 0, fails_at: int | None = None) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(16, 16, generator=draw))
        self.bias = nn.Parameter(torch.zeros(16))
        self.fails_at = fails_at
        self.said: list[tuple[float, float, int]] = []
        self.losses: list[float] = []
        self.trained_on: list[Tensor] = []
        self.callback: Callback | None = None

    def training_step(self, ids: Tensor, index: int) -> Tensor:
        if index == self.fails_at:
            raise ZeroDivisionError("mine")
        if self.callback is not None and self.callback.learner is not None:
            metrics = self.callback.learner.metrics()
            learner = self.callback.learner
            self.said.append((metrics["gruppetto/steps"], metrics["gruppetto/tokens"], learner.cursor))
        logits = self.weight[ids[:, :-1]] + self.bias
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.losses.append(loss.item())
        self.trained_on.append(ids)
        return loss

    def validation_step(self, ids: Tensor, index: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Alternating(Module):
    """Two optimizers, by hand: the second one ends a step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, ids: Tensor, index: int) -> Tensor:
        loss = super().training_step(ids, index)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        return [torch.optim.Muon([self.weight], lr=1e-3), torch.optim.AdamW([self.bias], lr=1e-2)]


ROWS = [torch.randint(16, (ROW,), generator=torch.Generator().manual_seed(n)) for n in range(64)]


def fit(place: Path, module: Module, url: str, *, data: Any = None, checkpoint: str | None = None, **how: Any) -> Any:
    served = data if isinstance(data, gruppetto.data.Slots) else None
    module.callback = Callback(syncer=url, name="a", quiet=True, max_run_ahead=0, leave_within_s=0.3, data=served)
    trainer = pl.Trainer(
        default_root_dir=place,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[module.callback],
        **{"max_epochs": -1, "max_steps": -1, "enable_checkpointing": False, **how},
    )
    loader = DataLoader(ROWS if data is None else data, batch_size=4)  # type: ignore[arg-type]
    trainer.fit(module, loader, DataLoader(ROWS[:4], batch_size=4), ckpt_path=checkpoint)  # type: ignore[arg-type]
    return trainer


def test_the_run_ends_the_fit_and_leaves_its_weights(syncer: Start, tmp_path: Path) -> None:
    running = syncer(rounds=5, **LOCK_STEP)
    module = Module()
    trainer = fit(tmp_path, module, running.url, accumulate_grad_batches=2, val_check_interval=4, log_every_n_steps=2)
    assert trainer.global_step == 5
    shown = fetch_status(running.url)["learners"]["a"]["metrics"]["loss"]
    assert shown == pytest.approx(module.losses[7]), "of the last batch of step 4, as it was before it was divided"
    tokens = 4 * ROW
    assert module.said == [(n // 2, 2 * (n // 2) * tokens, n // 2) for n in range(10)]
    weights = safetensors.torch.load(fetch_model(running.url, token=None).content)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.detach(), weights[name])
    assert module.callback is not None and module.callback.learner is None

    late = Module(seed=3)
    assert fit(tmp_path, late, running.url).global_step == 0, "it comes when the run is over"
    for name, parameter in late.named_parameters():
        assert torch.equal(parameter.detach(), weights[name])


def test_several_optimizers_by_hand_and_data_of_the_run(syncer: Start, tmp_path: Path) -> None:
    running = syncer(rounds=4, **LOCK_STEP)
    module = Alternating()
    fit(tmp_path, module, running.url, data=gruppetto.data.slots(ROWS))
    assert module.said == [(n, n * 4 * ROW, 4 * n) for n in range(4)]


def test_after_a_new_life_nothing_is_trained_on_that_was_fetched_before(
    syncer: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, data, told = Module(), gruppetto.data.slots(ROWS, num_slots=4), list[tuple[int, int]]()

    class Elsewhere:
        """The same learner, which has another slot from its fourth step on."""

        def __init__(self, learner: Learner) -> None:
            self._learner = learner

        @property
        def place(self) -> Place:
            return Place(incarnation=9, slot=3, cursor=0) if len(module.losses) >= 6 else self._learner.place

        def took(self, cursor: int, *, incarnation: int) -> None:
            told.append((incarnation, cursor))

    monkeypatch.setattr(data, "serve", lambda asks: type(data).serve(data, lambda: Elsewhere(asks())))
    running = syncer(rounds=5, num_slots=4, **LOCK_STEP)
    trainer = fit(tmp_path, module, running.url, data=data, accumulate_grad_batches=2)
    there = iter(gruppetto.data.slots(ROWS, num_slots=4).serve(Elsewhere(None)))  # type: ignore[arg-type]
    assert torch.equal(torch.cat(module.trained_on[6:]), torch.stack([next(there) for _ in range(16)]))
    life = told[0][0]
    assert told == [(life, 8), (life, 16), (life, 24), (9, 8), (9, 16)] and trainer.global_step == 5


def test_a_run_that_is_over_ends_a_fit_that_was_to_be_longer(syncer: Start, tmp_path: Path) -> None:
    running = syncer(rounds=3, **LOCK_STEP)
    module = Module()
    trainer = fit(tmp_path, module, running.url, min_steps=40, min_epochs=3)
    assert trainer.global_step == 3 and len(module.losses) == 3
    weights = safetensors.torch.load(fetch_model(running.url, token=None).content)
    assert all(torch.equal(parameter.detach(), weights[name]) for name, parameter in module.named_parameters())


def test_a_fit_goes_on_from_its_own_checkpoint(syncer: Start, tmp_path: Path) -> None:
    """Its steps and moments; the weights are the run's."""
    running = syncer(**LOCK_STEP)
    first = fit(tmp_path, Module(), running.url, max_steps=3)
    first.save_checkpoint(tmp_path / "saved.ckpt")
    assert fetch_status(running.url)["learners"]["a"]["state"] == "left"
    module = Module(seed=3)
    second = fit(tmp_path, module, running.url, max_steps=5, checkpoint=str(tmp_path / "saved.ckpt"))
    assert second.global_step == 5
    assert len(module.said) == 2
    assert all(int(state["step"]) == 5 for state in second.optimizers[0].state.values())


def test_an_exception_comes_out_as_it_is_and_the_learner_has_left(syncer: Start, tmp_path: Path) -> None:
    running = syncer(**LOCK_STEP)
    module = Module(fails_at=3)
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(tmp_path, module, running.url)
    assert module.callback is not None and module.callback.learner is None
    assert fetch_status(running.url)["learners"]["a"]["state"] == "left"


def test_settings_that_are_none() -> None:
    with pytest.raises(SettingError, match="tokens is 8"):
        Callback(syncer="http://127.0.0.1:7171", tokens=8)  # type: ignore[arg-type]
