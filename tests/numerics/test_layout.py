from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import LayoutError
from gruppetto.numerics.layout import MAX_NUMEL, MAX_TENSORS, Layout, TensorSpec, first_difference

shapes = st.lists(st.integers(0, 50), max_size=4).map(tuple)
dtypes = st.sampled_from(["float32", "bfloat16", "float64"])
layouts = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6, unique=True).flatmap(
    lambda names: st.tuples(*[st.builds(TensorSpec, name=st.just(n), shape=shapes, dtype=dtypes) for n in names]).map(
        lambda tensors: Layout(tensors=tensors)
    )
)


@given(layouts)
def test_survives_json(layout: Layout) -> None:
    again = Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert again == layout
    assert again.layout_hash == layout.layout_hash


@given(layouts, layouts)
def test_equal_exactly_if_hashes_are_and_if_no_difference_is_named(here: Layout, there: Layout) -> None:
    assert (here == there) == (here.layout_hash == there.layout_hash)
    assert (here == there) == (first_difference(here, there) == "")
    assert first_difference(here, here) == ""


def a(**changes: object) -> TensorSpec:
    return TensorSpec(**{"name": "a", "shape": (2, 3), "dtype": "float32", **changes})  # type: ignore[arg-type]


B = TensorSpec(name="b", shape=(), dtype="float32")


@pytest.mark.parametrize(
    "other",
    [(a(name="c"), B), (a(shape=(3, 2)), B), (a(shape=(6,)), B), (a(dtype="bfloat16"), B), (B, a()), (a(),)],
    ids=["name", "shape", "rank", "dtype", "order", "length"],
)
def test_the_hash_covers(other: tuple[TensorSpec, ...]) -> None:
    assert Layout(tensors=other).layout_hash != Layout(tensors=(a(), B)).layout_hash


def test_numel_counts_scalars_and_empty_tensors() -> None:
    assert Layout(tensors=(a(), B, a(name="none", shape=(0, 7)))).numel == 6 + 1 + 0


def test_the_difference_is_one_sentence() -> None:
    here, there = Layout(tensors=(a(), B)), Layout(tensors=(a(dtype="bfloat16"), B))
    assert first_difference(here, there) == "tensor 0 is 'a' float32 (2, 3) here and 'a' bfloat16 (2, 3) there"
    longer = first_difference(Layout(tensors=(a(),)), here)
    assert longer == "1 tensors here, 2 there: 'b' float32 () is only there"
    assert first_difference(here, Layout(tensors=(a(),))).endswith("'b' float32 () is only here")


def plain(**changes: object) -> dict[str, object]:
    return {"tensors": [{"name": "a", "shape": [2], "dtype": "float32", **changes}]}


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"tensors": plain()["tensors"] * 2}, "named twice"),  # type: ignore[operator]
        ({"tensors": []}, "0 tensors"),
        ({}, "not a layout"),
        ({"tensors": 3}, "not a layout"),
        ({"tensors": [3]}, "not a layout"),
        ({"tensors": [{"name": "a"}]}, "not a layout"),
        (plain(shape=[-1]), "shape"),
        (plain(shape=[2.0]), "shape"),
        (plain(shape=[True]), "shape"),
        (plain(shape=3), "not a layout"),
        (plain(shape=[MAX_NUMEL, 2]), "absurdly large"),
        (plain(shape=[1] * 17), "17 dimensions"),
        (plain(dtype="int64"), "'int64' cannot be averaged"),
        (plain(dtype=["float32"]), "not a layout"),
        (plain(name=""), "0 characters"),
        (plain(name="x" * 2000), "2000 characters"),
        (plain(name=7), "a name"),
    ],
)
def test_refuses(broken: dict[str, object], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        Layout.from_dict(broken)


def test_refuses_too_much_of_everything() -> None:
    with pytest.raises(LayoutError, match="elements is absurdly large"):
        Layout(tensors=tuple(a(name=str(i), shape=(MAX_NUMEL // 2 + 1,)) for i in range(2)))
    with pytest.raises(LayoutError, match="1000001 tensors"):
        Layout.from_dict({"tensors": [None] * (MAX_TENSORS + 1)})
