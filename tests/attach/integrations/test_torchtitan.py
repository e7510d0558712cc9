"""torchtitan's trainer cannot be imported everywhere (a private dependency of it, and a GPU at work). So what is called
here is a stand-in that has its methods in its order; and where the package is installed, its source is read for them.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from gruppetto.attach.integrations.torchtitan import RidesAlong, Section
from gruppetto.errors import SettingError
from gruppetto.launch.ask import fetch_model, fetch_status

Make = Callable[..., Any]
Start = Callable[..., Any]
LOCK_STEP = {"num_fragments": 2, "sync_period": 2, "overlap_steps": 0, "outer": "finetune", "uplink": "fp32"}


class Container(torch.optim.Optimizer):
    """As theirs: a subclass with no state of its own around a list."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        super().__init__([p for one in optimizers for g in one.param_groups for p in g["params"]], {})

    def step(self, closure: Any = None) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.optimizers:
            one.zero_grad()


class TheirTrainer:
    """The public shape of torchtitan 0.3's Trainer."""

    def __init__(self, config: Any, model: Any) -> None:
        self.config, self.model_parts = config, [model]
        rest = [p for p in model.parameters() if p is not model.matrix]
        self.optimizers = Container([torch.optim.AdamW([model.matrix], lr=1e-2), torch.optim.AdamW(rest, lr=1e-2)])
        self.step = self.ntokens_seen = 0
        self.loads: Callable[[], None] = lambda: None
        self.saved: list[torch.Tensor] = []

    def train(self) -> None:
        self.loads()
        batches = iter(range(10**6))
        while self.should_continue_training():
            self.step += 1
            self.train_step(batches)
            self.saved.append(self.model_parts[0].matrix.detach().clone())

    def train_step(self, data_iterator: Iterator[int]) -> None:
        self.optimizers.zero_grad()
        for _ in range(2):  # accumulated
            ids, labels = self.model_parts[0].batch(next(data_iterator))
            self.ntokens_seen += labels.numel()
            self.model_parts[0](ids, labels).backward()
        self.optimizers.step()

    def should_continue_training(self) -> bool:
        return self.step < self.config.steps


def fail(step: int) -> None:
    if step == 3:
        raise ZeroDivisionError


class OurTrainer(RidesAlong, TheirTrainer):
    pass


@dataclass(kw_only=True, slots=True)
class Config:
    steps: int = 1000
    gruppetto: Section = field(default_factory=Section)


def test_it_rides_to_the_end_and_what_is_saved_last_are_the_runs_weights(syncer: Start, toy: Make) -> None:
    running = syncer(rounds=5, **LOCK_STEP)
    config = Config(gruppetto=Section(syncer=running.url, name="a", max_run_ahead=0))
    trainer = OurTrainer(config, toy())
    told: list[int] = []
    trainer.optimizers.optimizers[-1].register_step_post_hook(lambda *_: told.append(trainer.ntokens_seen))
    trainer.loads = lambda: trainer.model_parts[0].load_state_dict(toy(1).state_dict())
    trainer.train()
    assert trainer.step == 5 and told == [32, 64, 96, 128, 160]
    assert fetch_status(running.url)["tokens"]["consumed"] == 160
    weights = safetensors.torch.load(fetch_model(running.url, token=None).content)
    assert torch.equal(trainer.saved[-1], weights["matrix"])
    assert trainer.learner is None
    late = OurTrainer(config, toy(2))
    late.train()
    assert late.ntokens_seen == 0 and torch.equal(late.saved[-1], weights["matrix"]), "it comes when the run is over"


def test_a_training_that_ends_first_says_goodbye(syncer: Start, toy: Make) -> None:
    running = syncer(**LOCK_STEP)
    OurTrainer(Config(steps=3, gruppetto=Section(syncer=running.url, name="a", max_run_ahead=0)), toy()).train()
    assert fetch_status(running.url)["learners"]["a"]["state"] == "left"
    broken = OurTrainer(Config(gruppetto=Section(syncer=running.url, name="b", max_run_ahead=0)), toy())
    broken.optimizers.optimizers[0].register_step_pre_hook(lambda *_: fail(broken.step))
    with pytest.raises(ZeroDivisionError):
        broken.train()
    assert fetch_status(running.url)["learners"]["b"]["state"] == "left"


def test_without_a_syncer_it_is_their_trainer(toy: Make) -> None:
    trainer = OurTrainer(Config(steps=3), toy())
    trainer.train()
    assert trainer.step == 3 and trainer.learner is None


def test_what_cannot_be(toy: Make, tmp_path: Path) -> None:
    trainer = OurTrainer(Config(gruppetto=Section(syncer="http://127.0.0.1:9")), toy())
    trainer.model_parts = [toy(), toy()]
    with pytest.raises(SettingError, match="2 parts"):
        trainer.train()
    with pytest.raises(SettingError, match="cannot be read"):
        Section(syncer="localhost", token_file=str(tmp_path / "none")).settings()
    (tmp_path / "token").write_text("sesame\n")
    assert Section(syncer="localhost", token_file=str(tmp_path / "token")).settings()["token"] == "sesame"


def test_their_trainer_has_what_is_asked_of_it() -> None:
    """Read, not run."""
    found = importlib.util.find_spec("torchtitan")
    if found is None or found.origin is None or not (source := Path(found.origin).with_name("trainer.py")).exists():
        pytest.skip("torchtitan is not installed")
    classes = {node.name: node for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)}
    theirs = classes["Trainer"]
    methods = {node.name: [a.arg for a in node.args.args] for node in theirs.body if isinstance(node, ast.FunctionDef)}
    assert methods["train"] == ["self"] == methods["should_continue_training"]
    assert methods["train_step"] == ["self", "data_iterator"]
    declared = {
        node.target.id for node in theirs.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert {"config", "model_parts", "optimizers", "ntokens_seen"} <= declared
    train = next(node for node in theirs.body if isinstance(node, ast.FunctionDef) and node.name == "train")
    called = [ast.unparse(node.func) for node in ast.walk(train) if isinstance(node, ast.Call)]
    assert {"self.checkpointer.load", "self.train_step", "self.should_continue_training"} <= set(called)
