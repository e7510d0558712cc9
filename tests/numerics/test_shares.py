from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import LayoutError
from gruppetto.numerics import fragment
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.numerics.runs import Runs
from gruppetto.numerics.shares import SMALL_NUMEL, local_pieces, runs_in, supplied

SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), min_size=1, max_size=5)


@st.composite
def held(draw: st.DrawFn, shape: tuple[int, ...], num_ranks: int) -> list[Runs]:
    """What each rank holds of a tensor: all of it, or as its rows are dealt to groups of ranks, some with none."""
    rows = shape[0] if shape else 1
    if not draw(st.booleans()):
        return [Runs.of([(0, prod(shape))])] * num_ranks
    groups = draw(st.lists(st.integers(0, num_ranks - 1), min_size=num_ranks, max_size=num_ranks))
    present = sorted(set(groups))
    cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=len(present) - 1, max_size=len(present) - 1)))
    bounds = dict(zip(present, zip([0, *cuts], [*cuts, rows], strict=True), strict=True))
    row_numel = prod(shape) // rows if rows else 0
    return [Runs.of([(bounds[g][0] * row_numel, bounds[g][1] * row_numel)]) for g in groups]


@given(shapes=SHAPES, num_ranks=st.integers(1, 4), num_fragments=st.integers(1, 4), data=st.data())
def test_the_pieces_of_all_ranks_are_the_model(
    shapes: list[tuple[int, ...]], num_ranks: int, num_fragments: int, data: st.DataObject
) -> None:
    layout = Layout(
        tensors=tuple(TensorSpec(name=f"w{i}.bias", shape=shape, dtype="float32") for i, shape in enumerate(shapes))
    )
    by_tensor = {tensor.name: data.draw(held(tensor.shape, num_ranks)) for tensor in layout.tensors}
    by_rank = [{name: ranks[rank] for name, ranks in by_tensor.items()} for rank in range(num_ranks)]
    supplies = supplied(layout, by_rank)
    model = {
        tensor.name: np.random.default_rng(i).standard_normal(tensor.numel) for i, tensor in enumerate(layout.tensors)
    }
    for spec in fragment(layout, num_fragments, merge_of=lambda name: "mean").fragments:
        whole = np.concatenate([model[p.name][p.start : p.stop] for p in spec.pieces] or [np.zeros(0)])
        came, times = np.full(spec.numel, np.nan), np.zeros(spec.numel, int)
        for rank in range(num_ranks):
            local = local_pieces(spec, by_rank[rank])
            vector = np.concatenate([model[p.name][p.start : p.stop] for p in local.pieces] or [np.zeros(0)])
            have, give = runs_in(spec, by_rank[rank]), runs_in(spec, supplies[rank])
            assert local.numel == have.numel == vector.size
            np.testing.assert_array_equal(vector, np.concatenate([whole[a:b] for a, b in have] or [np.zeros(0)]))
            sent = np.concatenate([vector[a:b] for a, b in give.within(have)] or [np.zeros(0)])
            at = 0
            for start, stop in give:
                came[start:stop] = sent[at : at + stop - start]
                times[start:stop] += 1
                at += stop - start
        np.testing.assert_array_equal(came, whole)
        assert (times == 1).all(), "each element is supplied by one rank"


def test_holders_share_out_what_is_large_and_take_turns_with_what_is_small() -> None:
    layout = Layout(
        tensors=(
            *(TensorSpec(name=f"s{i}", shape=(10,), dtype="float32") for i in range(4)),
            TensorSpec(name="large", shape=(SMALL_NUMEL * 2,), dtype="float32"),
        )
    )
    everything = {tensor.name: Runs.of([(0, tensor.numel)]) for tensor in layout.tensors}
    one, other = supplied(layout, [everything, everything])
    assert (sorted(one), sorted(other)) == (["large", "s0", "s2"], ["large", "s1", "s3"])
    assert (one["large"].bounds, other["large"].bounds) == (((0, SMALL_NUMEL),), ((SMALL_NUMEL, 2 * SMALL_NUMEL),))


def test_what_nobody_holds_is_named() -> None:
    layout = Layout(tensors=(TensorSpec(name="w", shape=(10,), dtype="float32"),))
    with pytest.raises(LayoutError, match="'w': elements 4 to 10 are held by no rank"):
        supplied(layout, [{"w": Runs.of([(0, 4)])}])
