"""Optimizer state and buffers by name: any optimizer's, whatever order its parameters are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gruppetto.attach.expected_state import rehearse
from gruppetto.attach.inner_state import InnerState, gather, kind_of, put_buffers, put_optimizer
from gruppetto.errors import StateError

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "adamw-tensor-lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), capturable=False, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd-plain": lambda p: torch.optim.SGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def model(seed: int = 0) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


def train(net: nn.Module, optimizer: torch.optim.Optimizer, first: int, steps: int) -> None:
    for index in range(first, first + steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("order", ["same", "reversed", "two groups"])
def test_training_goes_on_as_if_nothing_had_happened(name: str, order: str) -> None:
    """From the same parameters, the next steps are the same to the last bit; the rate is the newcomer's own."""
    here = model()
    first = MAKERS[name](here.parameters())
    train(here, first, 0, 5)

    there = model(1)
    mine: Any = list(there.parameters())
    if order == "reversed":
        mine.reverse()
    if order == "two groups":
        mine = [{"params": mine[3:]}, {"params": mine[:3]}]
    second = MAKERS[name](mine)
    put_optimizer(there, second, gather(here, first))
    put_buffers(there, gather(here, first).buffers)
    with torch.no_grad():
        for a, b in zip(there.parameters(), here.parameters(), strict=True):
            a.copy_(b)
    train(here, first, 5, 3)
    train(there, second, 5, 3)
    for a, b in zip(there.state_dict().values(), here.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_it_is_a_copy_and_settings_stay() -> None:
    here, there = model(), model(1)
    first, second = MAKERS["adamw"](here.parameters()), torch.optim.AdamW(there.parameters(), lr=0.5, weight_decay=0.7)
    train(here, first, 0, 2)
    put_optimizer(there, second, gather(here, first))
    kept = second.state[there[0].weight]["exp_avg"].clone()
    train(here, first, 2, 2)
    assert torch.equal(second.state[there[0].weight]["exp_avg"], kept)
    assert (second.param_groups[0]["lr"], second.param_groups[0]["weight_decay"]) == (0.5, 0.7)


@pytest.mark.parametrize(
    ("giver", "taker"), [("adamw", "sgd"), ("adamw", "adamw-amsgrad"), ("sgd", "sgd-plain"), ("adamw", "adafactor")]
)
def test_the_state_of_another_kind_of_optimizer_is_refused(giver: str, taker: str) -> None:
    here, there = model(), model()
    first, second = MAKERS[giver](here.parameters()), MAKERS[taker](there.parameters())
    train(here, first, 0, 1)
    with pytest.raises(StateError, match="not of"):
        put_optimizer(there, second, gather(here, first))
    assert not second.state
    assert kind_of(first) != kind_of(second)


def test_what_does_not_fit_is_refused_before_anything_changes() -> None:
    here, there = model(), model()
    first, second = MAKERS["adamw"](here.parameters()), MAKERS["adamw"](there.parameters())
    train(here, first, 0, 1)
    good = gather(here, first)
    key = ("0.weight", "exp_avg")
    for wrong in ({key: torch.zeros(5, 6)}, {("nowhere", "exp_avg"): torch.zeros(1)}):
        with pytest.raises(StateError):
            put_optimizer(there, second, InnerState(kind=good.kind, tensors=good.tensors | wrong))
        assert not second.state
    for buffers in ({"1.running_mean": torch.zeros(7)}, {"1.nothing": torch.zeros(6)}):
        with pytest.raises(StateError, match="none of this model"):
            put_buffers(there, good.buffers | buffers)
        assert not there[1].running_mean.any()


def test_state_without_a_plain_form_is_refused() -> None:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(3, 4)).square().mean()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    with pytest.raises(StateError, match="LBFGS keeps a"):
        gather(net, optimizer)


def test_an_optimizer_of_something_else_is_refused() -> None:
    with pytest.raises(StateError, match="no parameter of the model"):
        gather(model(), torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1.0))


def trained(name: str) -> tuple[nn.Module, torch.optim.Optimizer, InnerState]:
    """A fresh model and optimizer, and the state of another one that has trained."""
    here, there = model(), model(1)
    first = MAKERS[name](here.parameters())
    train(here, first, 0, 2)
    return there, MAKERS[name](there.parameters()), gather(here, first)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sgd-plain"])
def test_state_that_lacks_any_kind_of_it_is_refused(name: str) -> None:
    """Of every parameter or of one: the first step would look for it."""
    there, second, good = trained(name)
    for gone in {key for _, key in good.tensors}:
        owners = [n for n, key in good.tensors if key == gone]
        for names in ([owners[0]], owners):
            left = {k: v for k, v in good.tensors.items() if not (k[1] == gone and k[0] in names)}
            if {n for n, _ in left} == {n for n, _ in good.tensors}:
                with pytest.raises(StateError, match="lacks"):
                    put_optimizer(there, second, InnerState(kind=good.kind, tensors=left))
    put_optimizer(there, second, good)
    train(there, second, 0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {("0.weight", "exp_avg"): torch.zeros(1)},
        {("0.weight", "exp_avg"): torch.zeros(0, 2**62)},
        {("0.weight", "exp_avg"): torch.zeros(6, 4, dtype=torch.int32)},
        {("0.weight", "exp_avg"): torch.full((6, 4), torch.nan)},
        {("0.weight", "exp_avg_sq"): torch.full((6, 4), -1.0)},
        {("0.weight", "step"): torch.tensor(-1.0)},
        {("0.weight", "step"): torch.tensor(1e30)},
        {("0.weight", "step"): torch.tensor(torch.inf)},
        {("0.weight", "step"): torch.zeros(0, 3)},
        {("0.weight", "foo"): torch.zeros(())},
    ],
)
def test_odd_state_is_refused(wrong: dict[tuple[str, str], torch.Tensor]) -> None:
    there, second, good = trained("adamw")
    with pytest.raises(StateError):
        put_optimizer(there, second, InnerState(kind=good.kind, tensors=good.tensors | wrong))
    assert not second.state


@pytest.mark.parametrize("value", [None, 3, 2**63, torch.nan])
def test_a_number_where_a_tensor_belongs_is_refused(value: Any) -> None:
    there, second, good = trained("adamw")
    for key in ("exp_avg", "step"):
        left = {k: v for k, v in good.tensors.items() if k[1] != key}
        numbers = {k: value for k in good.tensors if k[1] == key}
        with pytest.raises(StateError):
            put_optimizer(there, second, InnerState(kind=good.kind, tensors=left, numbers=numbers))


class OfSomebodyElse(torch.optim.AdamW):
    """Its step is not called to see what it keeps."""


def test_the_state_of_an_unknown_optimizer_must_agree_with_itself() -> None:
    here, there = model(), model(1)
    first, second = OfSomebodyElse(here.parameters()), OfSomebodyElse(there.parameters())
    train(here, first, 0, 1)
    good = gather(here, first)
    left = {k: v for k, v in good.tensors.items() if k != ("0.weight", "exp_avg")}
    with pytest.raises(StateError, match="exp_avg"):
        put_optimizer(there, second, InnerState(kind=good.kind, tensors=left))
    with pytest.raises(StateError, match="NaN"):
        bad = {("0.bias", "exp_avg"): torch.full((6,), torch.nan)}
        put_optimizer(there, second, InnerState(kind=good.kind, tensors=good.tensors | bad))
    put_optimizer(there, second, good)
    train(there, second, 0, 1)


def test_parameters_without_a_gradient_have_no_state_and_need_none() -> None:
    here, there = model(), model(1)
    here[2].bias.requires_grad_(False)
    first, second = MAKERS["adamw"](here.parameters()), MAKERS["adamw"](there.parameters())
    train(here, first, 0, 1)
    put_optimizer(there, second, gather(here, first))
    assert there[2].bias not in second.state
    train(there, second, 0, 1)
    assert second.state[there[2].bias]["step"] == 1 and second.state[there[0].weight]["step"] == 2


def test_a_rehearsal_changes_nothing_and_calls_no_hooks() -> None:
    net = model()
    optimizer = MAKERS["adamw"](net.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    called: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    before = [p.clone() for p in net.parameters()]
    kinds = rehearse(optimizer)
    assert all(k is not None and set(k) == {"step", "exp_avg", "exp_avg_sq"} for k in kinds)
    assert not optimizer.state and not called and scheduler.last_epoch == 0
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_buffers_are_all_there_finite_and_of_the_same_kind() -> None:
    _, _, good = trained("adamw")
    there = model(1)
    wrong: Any
    for wrong in (torch.full((6,), torch.nan), torch.zeros(6, dtype=torch.int32)):
        with pytest.raises(StateError):
            put_buffers(there, good.buffers | {"1.running_mean": wrong})
    with pytest.raises(StateError, match="lacks"):
        put_buffers(there, {})
    there[1].running_mean.fill_(-torch.inf)
    put_buffers(there, good.buffers | {"1.running_mean": torch.full((6,), -torch.inf)})
