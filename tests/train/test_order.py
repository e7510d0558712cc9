"""The order of data: every window once an epoch, no window twice, any point at once, the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.train.order import Slot, permuted

seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 2000)


def slots(seed: int, num_slots: int, num_windows: int) -> list[Slot]:
    return [Slot(seed=seed, slot=s, num_slots=num_slots, num_windows=num_windows) for s in range(num_slots)]


@given(seed=seeds, size=sizes, epoch=st.integers(0, 10**6))
def test_an_epoch_is_a_permutation(seed: int, size: int, epoch: int) -> None:
    found = permuted(np.arange(size), size, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(found), np.arange(size))


@given(seed=seeds, num_slots=st.integers(1, 9), num_windows=sizes)
def test_slots_are_disjoint_and_together_cover_every_epoch(seed: int, num_slots: int, num_windows: int) -> None:
    per_slot = -(-2 * num_windows // num_slots)
    dealt = np.stack([slot.windows(0, per_slot) for slot in slots(seed, num_slots, num_windows)])
    # Reading across the slots gives the global sequence; its first two epochs are complete.
    line = dealt.T.ravel()
    for epoch in range(2):
        part = line[epoch * num_windows : (epoch + 1) * num_windows]
        assert np.array_equal(np.sort(part), np.arange(num_windows))


@given(seed=seeds, num_slots=st.integers(1, 9), num_windows=sizes, index=st.integers(0, 5000), data=st.data())
def test_random_access_equals_walking(
    seed: int, num_slots: int, num_windows: int, index: int, data: st.DataObject
) -> None:
    slot = data.draw(st.sampled_from(slots(seed, num_slots, num_windows)))
    together = slot.windows(index, 20)
    one_by_one = [int(slot.windows(index + i, 1)[0]) for i in range(20)]
    assert together.dtype == np.int64
    assert together.tolist() == one_by_one


@given(seed=seeds)
def test_epochs_and_seeds_differ(seed: int) -> None:
    orders = [permuted(np.arange(500), 500, seed=s, epoch=e) for s in (seed, seed ^ 1) for e in (0, 1)]
    for i, first in enumerate(orders):
        for second in orders[:i]:
            # Two random permutations agree in about one place.
            assert np.sum(first == second) < 20


def test_the_order_looks_random() -> None:
    size = 100_000
    found = permuted(np.arange(size), size, seed=0, epoch=0)
    # Neighbours are as far apart as chance has it: a third of the size on average.
    assert abs(np.abs(np.diff(found)).mean() / size - 1 / 3) < 0.005
    assert abs(np.corrcoef(np.arange(size), found)[0, 1]) < 0.02


def test_a_run_may_go_on_for_ever() -> None:
    slot = Slot(seed=1, slot=2, num_slots=3, num_windows=10)
    far = slot.windows(10**30, 10)
    assert set(far.tolist()) <= set(range(10))


def test_another_process_finds_the_same() -> None:
    code = (
        "from gruppetto.train.order import Slot;"
        "print(Slot(seed=9, slot=1, num_slots=4, num_windows=12345).windows(3000, 50).tolist())"
    )
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    ours = Slot(seed=9, slot=1, num_slots=4, num_windows=12345).windows(3000, 50).tolist()
    assert theirs.strip() == str(ours)


@pytest.mark.parametrize("values", [{"slot": 4}, {"slot": -1}, {"num_slots": 0}, {"num_windows": 0}])
def test_impossible_slots_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(SettingError):
        Slot(**({"seed": 0, "slot": 0, "num_slots": 4, "num_windows": 10} | values))
