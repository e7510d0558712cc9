"""Ranks that are started again in the store in which the ranks before them have left their addresses."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.attach.rendezvous import name_of_attempt, say_if_it_may_not_come_back
from gruppetto.errors import RunFailed


def attempt(size: int, do: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(do, range(size)))


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 5), dead=st.lists(st.sets(st.integers(0, 4)), max_size=3), data=st.data())
def test_every_attempt_has_a_name_of_its_own(size: int, dead: list[set[int]], data: st.DataObject) -> None:
    """Also after attempts in which some ranks knocked and died."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=20))
    names = set()
    for gone in dead:
        for rank in sorted(r for r in gone if 0 < r < size):
            store.set(f"gruppetto/attempt/{size}/knock/{rank}", f"stale-{rank}")
        (name,) = set(attempt(size, lambda rank: name_of_attempt(store, rank, size, patience_s=20.0)))
        assert name not in names
        names.add(name)


def test_a_group_of_three_is_made_again_in_the_same_store() -> None:
    store, rounds = dist.HashStore(), 3
    store.set_timeout(timedelta(seconds=20))

    def ride(rank: int) -> float:
        name = name_of_attempt(store, rank, 3, patience_s=20.0)
        group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 3, timedelta(seconds=20))
        total = torch.tensor([float(rank)])
        group.allreduce([total]).wait()
        return float(total)

    for _ in range(rounds):
        assert attempt(3, ride) == [3.0, 3.0, 3.0]


def test_who_does_not_come_is_named() -> None:
    store = dist.HashStore()
    with pytest.raises(RunFailed, match=r"rank 1 has not come in 0\.1 s"):
        name_of_attempt(store, 0, 2, patience_s=0.1)
    with pytest.raises(RunFailed, match=r"rank 0 has not come in 0\.1 s"):
        name_of_attempt(store, 1, 2, patience_s=0.1)


def test_ranks_that_may_not_come_back_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    say_if_it_may_not_come_back()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setattr("gruppetto.attach.rendezvous._met_here", True)
    say_if_it_may_not_come_back()
    assert not caplog.messages
    monkeypatch.setattr("gruppetto.attach.rendezvous._met_here", False)
    say_if_it_may_not_come_back()
    assert "rendezvous.init_process_group() in its place" in caplog.text
