"""Which processes are one learner: what may be said of it, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from gruppetto.attach.ranks import ranks_of
from gruppetto.errors import LayoutError


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
