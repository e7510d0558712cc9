"""Which processes are one learner: what may be said of it, and what is refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from gruppetto.attach.ranks import Ranks, ranks_of
from gruppetto.errors import LayoutError, RunFailed


@pytest.fixture
def begun() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("group", [3, "gloo", object(), dist.GroupMember.NON_GROUP_MEMBER])
def test_no_group_is_refused_also_where_there_are_no_ranks(group: object) -> None:
    with pytest.raises(LayoutError, match=r"torch\.distributed has not begun in this process; pass what") as said:
        ranks_of(nn.Linear(1, 1), group)
    assert "\n" not in str(said.value)


def test_among_ranks_a_group_has_to_be_one_that_holds_this_process(begun: None) -> None:
    with pytest.raises(LayoutError, match="is 3, which is no process group"):
        ranks_of(nn.Linear(1, 1), 3)
    with pytest.raises(LayoutError, match="does not hold this process"):
        ranks_of(nn.Linear(1, 1), dist.GroupMember.NON_GROUP_MEMBER)
    assert ranks_of(nn.Linear(1, 1), None) is dist.group.WORLD
    assert ranks_of(nn.Linear(1, 1), dist.new_group([0])) is None, "alone"


class Closed(logging.Handler):
    """Ends the wait as soon as something has been said of it."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
        self.said.set()


def test_a_rank_behind_its_loop_says_whom_it_waits_for() -> None:
    """Nobody else is there: the wait itself would end in ten minutes."""
    ranks = object.__new__(Ranks)
    ranks.rank = 3
    hears = Closed()
    log = logging.getLogger("gruppetto.learner")
    log.addHandler(hears)
    try:
        with ranks.waiting_to_leave("a", says_after_s=0.0):
            assert hears.said.wait(120.0)
    finally:
        log.removeHandler(hears)
    assert hears.text.startswith("a: rank 3 has left its loop and waits for the other ranks")


def test_a_rank_that_goes_before_it_has_come_ends_the_others_with_one_line(
    begun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose settings are refused."""

    def gone(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1.\nGLHF!")

    monkeypatch.setattr(dist, "broadcast", gone)
    with pytest.raises(RunFailed, match=r"another rank .* has gone.*closed by peer.*its own output says why") as said:
        Ranks(dist.group.WORLD)
    assert "\n" not in str(said.value)
