"""What all trainers' learners share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from gruppetto.attach.integrations.riding import Ride, check_one_process
from gruppetto.errors import SettingError

Make = Callable[..., Any]


def test_what_ranks_cannot_have_is_refused() -> None:
    check_one_process("data=", "leave it out")
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(SettingError, match="data=: this training has 2 processes; leave it out"):
            check_one_process("data=", "leave it out")
    finally:
        dist.destroy_process_group()


def test_it_begins_and_ends_again_and_again(syncer: Make, toy: Make) -> None:
    running = syncer(num_fragments=2, sync_period=2, overlap_steps=1)
    model = toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ride = Ride({"syncer": running.url, "name": "a", "quiet": True, "leave_within_s": 0.3}, where="test")
    ride.end()
    for life in (1, 2):
        learner = ride.begin(model, optimizer, used=lambda: 5)
        assert learner.place.incarnation == life
        for _ in range(3):
            model(*model.batch(0)).backward()
            optimizer.step()
        assert learner.metrics()["gruppetto/tokens"] == 15
        assert ride.learner is learner and not ride.over
        ride.end()
        assert learner.left and ride.learner is None
