"""What real loops do, each beside its twin without a learner: in lock step the two compute the same."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gruppetto
from gruppetto.attach.boundaries import LOOK_STEPS
from gruppetto.attach.inner_state import gather, put_optimizer
from gruppetto.attach.optimizers import Several, as_one
from gruppetto.errors import AddressError, ProtocolError, SettingError, StateError
from gruppetto.runtime import wire

Make = Callable[..., Any]
Start = Callable[..., Any]
LOCK_STEP = {"num_fragments": 2, "sync_period": 2, "overlap_steps": 0, "outer": "finetune", "uplink": "fp32"}
ROUNDS = 6
TOKENS = 16
LEVELS = 255


class EightBitMomentum(torch.optim.Optimizer):
    """Momentum as uint8 codes into a table of 256 numbers, with one scale for each tensor, as in some libraries."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or not parameter.numel():
                    continue
                state = self.state[parameter]
                if not state:
                    state["codes"] = torch.full_like(parameter, LEVELS // 2, dtype=torch.uint8)
                    state["table"] = torch.linspace(-1.0, 1.0, LEVELS + 1)
                    state["scale"] = torch.zeros(())
                momentum = 0.9 * state["scale"] * state["table"][state["codes"].long()] + parameter.grad
                state["scale"] = momentum.abs().max()
                state["codes"] = ((momentum / state["scale"] + 1) / 2 * LEVELS).round().to(torch.uint8)
                parameter.sub_(group["lr"] * momentum)


class Ride:
    """A loop around one model. ``step`` is one turn of the loop, after which :attr:`steps` counts what it should."""

    micro_batches = 1

    def __init__(self, model: Any) -> None:
        self.model, self.steps = model, 0
        self.optimizer = self.make(model)

    def make(self, model: nn.Module) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss(self, index: int) -> Tensor:
        return self.model(*self.model.batch(index))

    def step(self, index: int) -> None:
        self.loss(index).backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


class Accumulates(Ride):
    micro_batches = 3

    def step(self, index: int) -> None:
        for micro in range(self.micro_batches):
            (self.loss(3 * index + micro) / self.micro_batches).backward()
        self.update()


class ClipsAndSchedules(Ride):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)

    def step(self, index: int) -> None:
        self.loss(index).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.update()
        self.scheduler.step()


class Scales(Ride):
    """Under autocast, with a scaler that skips every third step."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(self, index: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss(index)
        skipped = index % 3 == 2
        self.scaler.scale(loss * (float("inf") if skipped else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.steps += not skipped


class Recomputes(Ride):
    def loss(self, index: int) -> Tensor:
        found: Tensor = checkpoint(self.model, *self.model.batch(index), use_reentrant=False)
        return found


class Closes(Ride):
    """The forward pass lies inside of the optimizer's step."""

    def step(self, index: int) -> None:
        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self.loss(index)
            loss.backward()
            return loss.item()

        self.optimizer.step(closure)
        self.steps += 1


class Foreach(Ride):
    def make(self, model: nn.Module) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)


class Fused(Ride):
    def make(self, model: nn.Module) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


class TwoGroups(Ride):
    def make(self, model: Any) -> Any:
        plain = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": [model.wte, model.matrix], "lr": 3e-3}, {"params": [*plain, model.nothing]}]
        return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


class MuonAndAdamW(Ride):
    def make(self, model: Any) -> Any:
        rest = [p for p in model.parameters() if p is not model.matrix]
        return [torch.optim.Muon([model.matrix], lr=1e-3), torch.optim.AdamW(rest, lr=1e-2)]

    def update(self) -> None:
        for one in self.optimizer:
            one.step()
            one.zero_grad()
        self.steps += 1


class EightBit(Ride):
    def make(self, model: nn.Module) -> Any:
        return EightBitMomentum(model.parameters(), lr=1e-3)


class PartlyFrozen(Ride):
    """As under LoRA: most of the model stays as it is, and does not travel."""

    def make(self, model: Any) -> Any:
        model.wte.requires_grad_(False)
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


@pytest.mark.parametrize(
    ("loop", "atol"),
    [
        (Accumulates, 1e-6),
        (ClipsAndSchedules, 1e-6),
        (Scales, 1e-4),  # roundings of bfloat16 may fall differently
        (Recomputes, 1e-6),
        (Closes, 1e-6),
        (Foreach, 1e-6),
        (Fused, 1e-6),
        (TwoGroups, 1e-6),
        (MuonAndAdamW, 1e-4),  # as may those inside of Muon
        (EightBit, 1e-4),  # and those to a code
        (PartlyFrozen, 1e-6),
    ],
)
def test_in_lock_step_a_loop_computes_what_it_computes_alone(
    syncer: Start, toy: Make, loop: type[Ride], atol: float
) -> None:
    running = syncer(rounds=ROUNDS, **LOCK_STEP)
    here, alone = loop(toy()), loop(toy())
    began = [p.detach().clone() for p in alone.model.parameters()]
    how: dict[str, Any] = {"tokens_per_step": TOKENS * loop.micro_batches, "max_run_ahead": 0, "quiet": True}
    with gruppetto.Learner(here.model, here.optimizer, syncer=running.url, **how) as learner:
        for index in learner.until_finished(itertools.count()):
            here.step(index)
            alone.step(index)
            for a, b in zip(here.model.parameters(), alone.model.parameters(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)
            assert learner.metrics()["gruppetto/steps"] == here.steps == learner.cursor
        assert learner.metrics()["gruppetto/tokens"] == TOKENS * loop.micro_batches * ROUNDS
    assert here.steps == ROUNDS
    moved = [not torch.equal(a, b) for a, b in zip(began, alone.model.parameters(), strict=True)]
    assert any(moved), "they did train"


def test_nothing_is_compiled_anew_and_no_graph_is_broken(syncer: Start, toy: Make) -> None:
    """Whether the learner holds the compiled model or the one inside of it."""
    for holds_compiled in (True, False):
        torch._dynamo.reset()
        running = syncer(rounds=ROUNDS, **LOCK_STEP)
        model = toy()
        compiled = torch.compile(model, backend="eager", fullgraph=True)  # raises where the graph breaks
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        attached = compiled if holds_compiled else model
        how: dict[str, Any] = {"tokens_per_step": TOKENS, "max_run_ahead": 0, "quiet": True}
        with gruppetto.Learner(attached, optimizer, syncer=running.url, **how) as learner:
            torch._dynamo.utils.counters.clear()
            for index in learner.until_finished(itertools.count()):
                compiled(*model.batch(index)).backward()
                optimizer.step()
                optimizer.zero_grad()
            assert learner.metrics()["gruppetto/bytes_down"] > 0
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, torch._dynamo.utils.counters
    torch._dynamo.reset()


def test_what_is_frozen_or_thawed_on_the_way_is_said_once(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    model = toy()
    model.gain.requires_grad_(False)
    ride = Ride(model)
    url = syncer(**{**LOCK_STEP, "overlap_steps": 1}).url
    with (
        caplog.at_level(logging.WARNING, "gruppetto.learner"),
        gruppetto.Learner(model, ride.optimizer, syncer=url, name="a", tokens_per_step=TOKENS, quiet=True),
    ):
        ride.step(0)
        model.matrix.requires_grad_(False)
        model.gain.requires_grad_(True)
        for index in range(2 * LOOK_STEPS):
            ride.step(index)
    said = [record.message for record in caplog.records if "since the model was attached" in record.message]
    assert len(said) == 2
    assert said[0].startswith("a: 'matrix': frozen")
    assert said[1].startswith("a: 'gain': trained")


@pytest.mark.parametrize("other", ["version", "token"])
def test_a_syncer_that_is_another_now_ends_no_loop(
    syncer: Start, toy: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """It is said in one line, though a line had been said of the lost connection; who enters now is told at once."""
    says, error = {
        "version": ("this syncer 99; upgrade Gruppetto at the learner", ProtocolError),
        "token": ("refuses the token", AddressError),
    }[other]
    running = syncer(num_fragments=2, sync_period=2, overlap_steps=1)
    ride = Ride(toy())
    how: dict[str, Any] = {"syncer": running.url, "name": "a", "tokens_per_step": TOKENS, "quiet": True}
    with caplog.at_level(logging.WARNING, "gruppetto.learner"):
        with gruppetto.Learner(ride.model, ride.optimizer, **how) as learner:
            ride.step(0)
            running.stop()
            if other == "version":
                monkeypatch.setattr(wire, "WIRE_VERSION", 99)
            else:
                running._setting["token"] = "sesame"
            running.start()
            with learner._client.news:
                assert learner._client.news.wait_for(lambda: says in learner.waiting_for, timeout=120.0)
            for index in range(5):
                ride.step(index)
            assert learner.metrics()["gruppetto/steps"] == 6
        ours = [record.message for record in caplog.records if record.name == "gruppetto.learner"]
        assert sum(says in line for line in ours) == 1
    late = Ride(toy())
    with pytest.raises(error, match=says):
        gruppetto.Learner(late.model, late.optimizer, **how).__enter__()


# ── what may be passed as an optimizer ───────────────────────────────────────────────────────────────────────────


@dataclass
class Wrapper(torch.optim.Optimizer):
    """As the optimizers that trainers hand out: a subclass without anything of its base."""

    optimizer: torch.optim.Optimizer


@dataclass
class Container(torch.optim.Optimizer):
    optimizers: list[torch.optim.Optimizer]


def test_wrappers_are_looked_through(toy: Make) -> None:
    ride = MuonAndAdamW(toy())
    muon, rest = ride.optimizer
    assert as_one(Wrapper(Wrapper(muon))) is muon
    assert as_one([muon]) is muon
    both = as_one(Container([Wrapper(muon), rest]))
    assert isinstance(both, Several)
    assert both.optimizers == (muon, rest)
    assert as_one(both) is both


def test_several_optimizers_are_one_with_all_their_state(toy: Make) -> None:
    ride, other = MuonAndAdamW(toy()), MuonAndAdamW(toy())
    ride.step(0)
    both, second = as_one(ride.optimizer), as_one(other.optimizer)
    assert len(both.state) == 4, "all that have had a gradient"
    second.load_state_dict(both.state_dict())
    assert torch.equal(
        second.state[other.model.matrix]["momentum_buffer"], both.state[ride.model.matrix]["momentum_buffer"]
    )
    with pytest.raises(StateError, match="not the state of 2"):
        second.load_state_dict({"0": both.state_dict()["0"]})


def test_what_no_optimizers_are(toy: Make) -> None:
    model = toy()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(SettingError, match="no optimizer in the list"):
        as_one([])
    with pytest.raises(SettingError, match="the same parameter"):
        gruppetto.Learner(model, [sgd, torch.optim.SGD([model.wte], lr=1.0)], syncer="localhost")


def test_eight_bit_state_is_taken_up_as_it_was(toy: Make) -> None:
    """To the last bit, though torch's own ``load_state_dict`` would make numbers of the codes."""
    here, there = EightBit(toy(0)), EightBit(toy(1))
    for index in range(3):
        here.step(index)
    put_optimizer(there.model, there.optimizer, gather(here.model, here.optimizer))
    there.model.load_state_dict(here.model.state_dict())
    for ride in (here, there):
        ride.step(3)
    for a, b in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert there.optimizer.state[there.model.matrix]["codes"].dtype == torch.uint8


def test_the_state_of_several_goes_to_another_by_name(toy: Make) -> None:
    here, there = MuonAndAdamW(toy(0)), MuonAndAdamW(toy(1))
    here.step(0)
    state = gather(here.model, as_one(here.optimizer))
    put_optimizer(there.model, as_one(there.optimizer), state)
    there.model.load_state_dict(here.model.state_dict())
    for ride in (here, there):
        ride.step(1)
    for a, b in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(a, b)
    only_one = torch.optim.AdamW(there.model.parameters(), lr=1e-2)
    with pytest.raises(StateError, match=r"that of torch.optim.*Muon.* \+ torch.optim.adamw.AdamW"):
        put_optimizer(there.model, only_one, state)


# ── what travels ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_buffers_stay_with_their_learner(syncer: Start) -> None:
    """Through any number of rounds, and through the last one, which puts the run's weights in."""
    running = syncer(rounds=4, num_learners=2, start_learners=2, num_fragments=1, sync_period=1, overlap_steps=0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2)]

    def ride(number: int) -> None:
        model = models[number]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        how: dict[str, Any] = {"name": f"l{number}", "tokens_per_step": 8, "max_run_ahead": 0, "quiet": True}
        with gruppetto.Learner(model, optimizer, syncer=running.url, **how) as learner:
            for index in learner.until_finished(itertools.count()):
                x = torch.randn(8, 3, generator=torch.Generator().manual_seed(index)) + 10 * number
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    threads = [threading.Thread(target=ride, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)
    one, other = (model[1] for model in models)
    assert not torch.allclose(one.running_mean, other.running_mean, atol=0.1)  # type: ignore[arg-type]
    assert min(int(one.num_batches_tracked), int(other.num_batches_tracked)) >= 4  # type: ignore[arg-type]
