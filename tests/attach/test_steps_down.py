"""Published values that come as steps, over a real connection: a learner has the syncer's very bits."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import gruppetto

NUMEL, ROUNDS = 3000, 6


class Bowl(nn.Module):
    """Its gradient is its distance from the bottom: every step is another one."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(NUMEL, generator=generator))
        self.bottom = torch.randn(NUMEL, generator=generator)

    def forward(self) -> Tensor:
        return ((self.w - self.bottom) ** 2).sum()


@pytest.mark.parametrize(("downlink", "bytes_a_block"), [("delta", 130), ("delta-int4", 66)])
def test_a_learner_that_follows_steps_has_the_syncers_bits(
    syncer: Callable[..., Any], downlink: str, bytes_a_block: int
) -> None:
    running = syncer(
        num_fragments=1, sync_period=1, overlap_steps=0, rounds=ROUNDS, outer="short", uplink="fp32", downlink=downlink
    )
    model = Bowl()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gruppetto.Learner(
        model, optimizer, syncer=running.url, tokens_per_step=1, max_run_ahead=0, quiet=True
    ) as learner:
        client = learner._client
        for _ in range(ROUNDS):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        with client.news:
            assert client.news.wait_for(lambda: learner.finished and not client.backlog.uploads, timeout=120.0)
        with urllib.request.urlopen(f"{running.url}/v1/model") as reply:
            published = safetensors.torch.load(reply.read())
    assert torch.equal(model.w.detach(), published["w"])
    whole, step = 4 * NUMEL, -(-NUMEL // 128) * bytes_a_block
    assert client.bytes_down == whole + ROUNDS * step


def test_another_life_of_the_syncer_goes_on_in_steps(syncer: Callable[..., Any]) -> None:
    running = syncer(num_fragments=1, sync_period=1, overlap_steps=0, rounds=ROUNDS, outer="short", downlink="delta")
    model = Bowl()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gruppetto.Learner(
        model, optimizer, syncer=running.url, tokens_per_step=1, max_run_ahead=0, quiet=True
    ) as learner:
        client = learner._client
        lives = 1
        while not learner.finished:
            if lives == 1 and client.core.newest_round >= 3:
                running.stop()
                running.start()
                lives = 2
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
            with client.news:  # the pace of the rounds: alone it would run ahead while the syncer is away
                client.news.wait_for(lambda: learner.finished or client.core.newest_round + 1 >= learner.clock, 120.0)
        with urllib.request.urlopen(f"{running.url}/v1/model") as reply:
            published = safetensors.torch.load(reply.read())
    assert torch.equal(model.w.detach(), published["w"])
    whole, step = 4 * NUMEL, -(-NUMEL // 128) * 130
    assert lives == 2 and client.bytes_down <= 2 * whole + ROUNDS * step
