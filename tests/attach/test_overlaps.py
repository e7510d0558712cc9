from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gruppetto.attach.overlaps import shared_elements

DTYPES = st.sampled_from([torch.float16, torch.float32])


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Of a storage of 64 bytes."""
    dtype = draw(DTYPES)
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = draw(st.lists(st.integers(0, 4), min_size=len(shape), max_size=len(shape)))
    return torch.empty(0, dtype=dtype).set_(STORAGE, draw(st.integers(0, 3)), shape, strides)


STORAGE = torch.zeros(64, dtype=torch.uint8).untyped_storage()


def octets(tensor: Tensor) -> list[int]:
    """Every byte of every element, one element after the other."""
    begins = [tensor.storage_offset()]
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        begins = [begin + step * i for begin in begins for i in range(size)]
    return [begin * tensor.itemsize + i for begin in begins for i in range(tensor.itemsize)]


@given(st.lists(views(), min_size=1, max_size=3))
def test_what_is_shared_is_what_counting_bytes_says(tensors: list[Tensor]) -> None:
    named = {str(number): tensor for number, tensor in enumerate(tensors)}
    covered = {name: octets(tensor) for name, tensor in named.items()}
    shares = {(a, b) for a in named for b in named if a != b and set(covered[a]) & set(covered[b])}
    shares |= {(a, a) for a in named if len(set(covered[a])) < len(covered[a])}
    found = shared_elements(named)
    assert (found in shares) if shares else found is None


def test_views_of_other_storages_meet_nowhere() -> None:
    assert shared_elements({"a": torch.zeros(4), "b": torch.zeros(4), "c": torch.zeros(3, 5).T}) is None
