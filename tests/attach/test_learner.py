"""The learner against a real syncer on loopback: what it computes."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gruppetto
from gruppetto.numerics import OuterSetting, synchronous_diloco

EXACT = {"outer": "finetune", "uplink": "fp32"}
"""η = 1, μ = 0, nothing rounded: with one learner the global model is the local one."""


def train(model: Any, optimizer: torch.optim.Optimizer, index: int, seed: int = 0) -> float:
    loss = model(*model.batch(index, seed))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def assert_same(one: nn.Module, other: nn.Module, *, atol: float) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)


def status(syncer: Any) -> dict[str, Any]:
    with urllib.request.urlopen(f"{syncer.url}/v1/status") as reply:
        return json.load(reply)


Make = Callable[..., Any]
Start = Callable[..., Any]


@pytest.mark.parametrize(("num_fragments", "sync_period"), [(3, 3), (1, 1), (3, 6), (2, 1)])
def test_one_learner_in_lock_step_is_plain_adamw(
    syncer: Start, toy: Make, num_fragments: int, sync_period: int
) -> None:
    running = syncer(num_fragments=num_fragments, sync_period=sync_period, overlap_steps=0, rounds=20, **EXACT)
    attached, plain = toy(), toy()
    optimizer, plain_optimizer = adamw(attached), adamw(plain)
    with gruppetto.Learner(
        attached, optimizer, syncer=running.url, tokens_per_step=16, max_run_ahead=0, quiet=True
    ) as learner:
        for index in learner.until_finished(itertools.count()):
            train(attached, optimizer, index)
            train(plain, plain_optimizer, index)
            assert_same(attached, plain, atol=1e-7)
        assert (learner.round, learner.rounds, learner.finished) == (20, 20, True)
        assert learner.metrics()["gruppetto/bytes_up"] > 0
    if sync_period == 1:  # otherwise the run ended before it had the last steps of every fragment
        assert_same(attached, plain, atol=1e-7)


def test_one_learner_that_carries_loses_nothing_in_flight(syncer: Start, toy: Make) -> None:
    """Plain SGD here: AdamW divides by the gradient's own size, which makes rounding errors as large as steps."""
    running = syncer(num_fragments=3, sync_period=3, rounds=60, apply="carry", **EXACT)
    attached, plain = toy(), toy()
    optimizer, plain_optimizer = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (attached, plain))
    with gruppetto.Learner(
        attached, optimizer, syncer=running.url, tokens_per_step=16, max_run_ahead=3, quiet=True
    ) as learner:
        for index in learner.until_finished(itertools.count()):
            train(attached, optimizer, index)
            train(plain, plain_optimizer, index)
            assert_same(attached, plain, atol=1e-5)
        assert learner.round == 60


def test_a_bfloat16_learner_in_lock_step_is_plain_adamw(syncer: Start, toy: Make) -> None:
    running = syncer(num_fragments=3, sync_period=3, overlap_steps=0, rounds=12, **EXACT)
    attached, plain = toy().bfloat16(), toy().bfloat16()
    optimizer, plain_optimizer = adamw(attached), adamw(plain)
    with gruppetto.Learner(
        attached, optimizer, syncer=running.url, tokens_per_step=16, max_run_ahead=0, quiet=True
    ) as learner:
        for index in learner.until_finished(itertools.count()):
            train(attached, optimizer, index)
            train(plain, plain_optimizer, index)
            assert_same(attached, plain, atol=0.0)


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.0), (0.7, 0.5)])
def test_two_learners_in_lock_step_are_textbook_diloco(syncer: Start, toy: Make, lr: float, momentum: float) -> None:
    rounds = 6
    running = syncer(
        num_learners=2,
        start_learners=2,
        min_quorum=2,
        num_fragments=1,
        sync_period=1,
        overlap_steps=0,
        rounds=rounds,
        merge=((".", "mean"),),
        outer=OuterSetting(optimizer="nesterov", lr=lr, momentum=momentum),
        uplink="fp32",
    )
    models = [toy(seed=0), toy(seed=1)]  # whoever comes first gives the initial weights
    ends: dict[int, Any] = {}

    def one(number: int) -> None:
        model = models[number]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gruppetto.Learner(
            model, optimizer, syncer=running.url, name=f"l{number}", tokens_per_step=16, max_run_ahead=0, quiet=True
        ) as learner:
            began = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            for index in learner.until_finished(itertools.count()):
                train(model, optimizer, index, seed=number)
            ends[number] = began

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(ends[0], ends[1]), "both begin with the same weights"

    def inner_step(number: int) -> Callable[[Any, int], Any]:
        def step(theta: Any, index: int) -> Any:
            model = toy()
            nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), index, seed=number)
            return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()

        return step

    textbook = synchronous_diloco(ends[0].numpy(), [inner_step(0), inner_step(1)], rounds, 1, lr, momentum)
    for model in models:
        found = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        np.testing.assert_allclose(found, textbook[-1], rtol=1e-5, atol=1e-6)


def test_the_books_balance_when_everybody_has_left(syncer: Start, toy: Make) -> None:
    running = syncer(num_fragments=3, sync_period=3, rounds=30, **EXACT)
    model = toy()
    optimizer = adamw(model)
    with gruppetto.Learner(model, optimizer, syncer=running.url, name="a", tokens_per_step=16, quiet=True) as learner:
        for index in learner.until_finished(itertools.count()):
            learner.report(loss=train(model, optimizer, index), unheard_of=float("nan"))
        steps = learner.metrics()["gruppetto/steps"]
    seen = status(running)
    tokens = seen["tokens"]
    assert tokens["consumed"] == 16 * steps
    assert tokens["consumed"] == tokens["merged"] + tokens["discarded"] + tokens["lost"] + tokens["open"]
    assert tokens["merged"] > 0
    shown = seen["learners"]["a"]["metrics"]
    assert set(shown) == {"loss", "unheard_of"} and shown["unheard_of"] is None, "JSON has no word for NaN"


def test_after_the_last_round_the_model_is_the_global_one(syncer: Start, toy: Make, tmp_path: Path) -> None:
    from safetensors.torch import load

    running = syncer(num_fragments=3, sync_period=3, rounds=15, outer="short")
    model = toy()
    optimizer = adamw(model)
    with gruppetto.Learner(model, optimizer, syncer=running.url, tokens_per_step=16, quiet=True) as learner:
        # After two more periods without a step of ours every fragment would be due again: stop at the end.
        for index in learner.until_finished(itertools.count()):
            train(model, optimizer, index)
    with urllib.request.urlopen(f"{running.url}/v1/model") as reply:
        published = load(reply.read())
    versions = [fragment.version for fragment in learner._core.fragments]
    assert sorted(versions) == [13, 14, 15]
    last = learner._holdings.model.fragmentation.fragments[versions.index(15)]
    for piece in last.pieces:
        here = model.get_parameter(piece.name).detach().flatten()[piece.start : piece.stop]
        assert torch.equal(here, published[piece.name].flatten()[piece.start : piece.stop])
