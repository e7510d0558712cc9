"""What an encoding leaves unsaid, in a learner on a real connection and in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gruppetto
from gruppetto.attach.holdings import MOST_LEFT, Holdings
from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import StateError
from gruppetto.numerics import fragment
from gruppetto.protocol.actions import KeepRest
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.leases import Lease


class Straight(nn.Module):
    """Every step of SGD at rate 1 takes the same whole numbers off: no sum below has anything to round."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(300))
        self.b = nn.Parameter(torch.zeros(3))
        generator = torch.Generator().manual_seed(0)
        self.pull = [torch.randint(-9, 10, (n,), generator=generator).float() for n in (300, 3)]

    def forward(self) -> Tensor:
        return (self.w * self.pull[0]).sum() + (self.b * self.pull[1]).sum()


@pytest.mark.parametrize("uplink", ["int8", "int4", "fp4-e3m0"])
def test_what_was_merged_and_what_is_left_are_what_was_learnt(syncer: Callable[..., Any], uplink: str) -> None:
    running = syncer(num_fragments=1, sync_period=1, overlap_steps=0, rounds=8, outer="finetune", uplink=uplink)
    model = Straight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with gruppetto.Learner(
        model, optimizer, syncer=running.url, tokens_per_step=1, max_run_ahead=0, quiet=True
    ) as learner:
        for _ in range(8):
            optimizer.zero_grad()
            model().backward()
            optimizer.step()
        client = learner._client
        with client.news:
            assert client.news.wait_for(lambda: learner.finished and not client.backlog.uploads, timeout=120.0)
        plain = learner.state_dict()
    for name, pull in zip(("w", "b"), model.pull, strict=True):
        merged, rest = dict(model.named_parameters())[name].detach(), plain[f"rest.{name}"]
        assert rest.any(), "otherwise this says nothing"
        assert torch.equal(merged - rest, -8 * pull)

    again = gruppetto.Learner(Straight(), None, hook=False, syncer=running.url, quiet=True)
    again.load_state_dict(plain, same_life=True)
    assert torch.equal(again.state_dict()["rest.w"], plain["rest.w"])
    reborn = gruppetto.Learner(Straight(), None, hook=False, syncer=running.url, quiet=True)
    reborn.load_state_dict(plain)
    assert "rest.w" not in reborn.state_dict(), "another life owes nothing"
    for broken in ({**plain, "rest.w": torch.zeros(2)}, {k: v for k, v in plain.items() if k != "rest.b"}):
        with pytest.raises(StateError, match="what it owes"):
            again.load_state_dict(broken, same_life=True)


def answer(round: int, tokens: int) -> Answer:
    return Answer(
        learner=LearnerId("a"),
        incarnation=Incarnation(1),
        epoch=Epoch(1),
        round=Round(round),
        fragment=Fragment(0),
        base_version=Version(0),
        steps=1,
        tokens=tokens,
        total_tokens=tokens,
        cursor=1,
        layout_hash="",
    )


def test_one_rest_is_kept_and_the_others_go() -> None:
    flat = FlatModel(Straight())
    holdings = Holdings(flat)
    holdings.cut(fragment(flat.layout, 1), ApplyMode.OVERWRITE)

    def left(round: int, tokens: int, value: float) -> Lease:
        lease = holdings.lend(Fragment(0))
        lease.values[:] = value
        holdings.left(answer(round, tokens), lease)
        return lease

    left(1, 10, 1.0)
    left(1, 20, 2.0)
    holdings.keep_rest(KeepRest(fragment=Fragment(0), round=Round(1), tokens=10))
    assert (holdings.vectors()["rest.0"] == 1.0).all() and not holdings._left
    for tokens in range(5):
        left(2, tokens, 3.0)
    assert len(holdings._left[Fragment(0)]) == MOST_LEFT
    holdings.keep_rest(KeepRest(fragment=Fragment(0), round=Round(9), tokens=1))  # nobody knows it: the old one stays
    assert (holdings.rests_by_name()["b"] == 1.0).all()
    left(3, 1, 4.0)
    saved = holdings.vectors()
    holdings.drop_rests()
    assert holdings.rests_by_name() == {}
    holdings.put_vectors(saved)
    assert {name: float(v[0]) for name, v in holdings.vectors().items()} == {"rest.0": 1.0, "left.0.3.1": 4.0}
