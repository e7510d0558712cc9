"""Who leaves its loop finds out whether the others can meet it, through a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from gruppetto.attach import deserting
from gruppetto.attach.deserting import Whereabouts
from gruppetto.errors import RunFailed
from gruppetto.runtime.clock import MonotonicClock

Ranks = Callable[[int], list[Whereabouts]]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    """Ranks that have been through two boundaries together."""
    monkeypatch.setattr(deserting, "DESERTED_S", 0.2)
    store, made = dist.HashStore(), list[Whereabouts]()

    def make(size: int) -> list[Whereabouts]:
        for rank in range(size):
            made.append(Whereabouts(lambda: store, "s", rank=rank, size=size, clock=MonotonicClock()))
        for one in made:
            one.start()
            for _ in range(2):
                one.waits()
                one.between()
                one.trains()
            one.waits()
            one.between()
        return made

    yield make
    for one in made:
        one.close()


def leaves(one: Whereabouts) -> threading.Thread:
    thread = threading.Thread(target=one.leave, kwargs={"step_s": 0.0})
    thread.start()
    return thread


def test_all_that_leave_meet(ranks: Ranks) -> None:
    together = ranks(3)
    for thread in [leaves(one) for one in together]:
        thread.join()
    assert not any(one.deserted for one in together)


def test_a_rank_between_two_steps_is_waited_for_until_it_comes(ranks: Ranks) -> None:
    """What was its last boundary too is none: it might begin a step from there."""
    one, other = ranks(2)
    other._at = deserting.WAITS  # on its way out of the boundary that both have been through
    leaving = leaves(one)
    leaving.join(0.3)
    assert leaving.is_alive()
    other.between()
    leaving.join(0.3)
    assert leaving.is_alive()
    other.waits()
    leaving.join()
    assert not other.deserted


def test_a_rank_that_trains_on_alone_ends_both(ranks: Ranks) -> None:
    one, away, other = ranks(3)
    away.waits()
    other.trains()
    with pytest.raises(RunFailed, match=r"rank 0 of this learner has left its loop, and rank 2 trains on.* equally"):
        one.leave(step_s=0.0)
    assert "rank 0" in other.deserted and other.deserted == away.deserted


def test_a_step_that_usually_takes_long_may(ranks: Ranks) -> None:
    one, other = ranks(2)
    other.trains()
    leaving = threading.Thread(target=one.leave, kwargs={"step_s": 3600.0})
    leaving.start()
    leaving.join(0.5)
    assert leaving.is_alive()
    other.close()  # it leaves too
    leaving.join()
    assert not other.deserted


def test_without_a_store_nobody_is_asked() -> None:
    alone = Whereabouts(lambda: None, "s", rank=0, size=2, clock=MonotonicClock())
    alone.start()
    alone.leave(step_s=0.0)
    alone.close()
    assert not alone.deserted
