from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gruppetto.runtime.leases import MAX_FREE, Lease, LeasePool


@given(moves=st.lists(st.tuples(st.sampled_from(["lend", "hold", "release"]), st.integers(0, 40)), max_size=60))
def test_no_two_holders_ever_share_a_buffer(moves: list[tuple[str, int]]) -> None:
    pool = LeasePool(grain=8)
    held: list[tuple[Lease, int]] = []  # one entry a hold, with what its holder wrote
    for serial, (move, number) in enumerate(moves):
        if move == "lend":
            lease = pool.lend(number)
            assert lease.values.shape == (number,)
            lease.values[:] = serial
            held.append((lease, serial))
        elif held:
            lease, written = held[number % len(held)]
            if move == "hold":
                held.append((lease.hold(), written))
            else:
                held.remove((lease, written))
                lease.release()
        for lease, written in held:
            assert (lease.values == written).all()


def test_released_once_too_often_is_a_defect() -> None:
    lease = LeasePool().lend(1)
    lease.release()
    with pytest.raises(AssertionError):
        lease.release()
    with pytest.raises(AssertionError):
        lease.hold()


def test_idle_buffers_are_bounded() -> None:
    made = 0

    def allocate(numel: int) -> NDArray[np.float32]:
        nonlocal made
        made += 1
        return np.empty(numel, np.float32)

    pool = LeasePool(allocate)
    for _ in range(2):
        leases = [pool.lend(5) for _ in range(MAX_FREE + 3)]
        for lease in leases:
            lease.release()
    assert made == MAX_FREE + 3 + 3


def test_a_buffer_still_being_filled_is_waited_for_before_it_is_lent_again() -> None:
    pool = LeasePool()
    lease = pool.lend(4)
    waited = []
    lease.ready = lambda: waited.append(True)
    lease.release()
    assert not waited
    again = pool.lend(4)
    assert waited == [True]
    again.ready()
    assert waited == [True], "the new lease owes nothing to the old copy"
