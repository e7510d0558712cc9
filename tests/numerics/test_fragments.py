from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.numerics.fragments import FRAGMENTERS, MAX_FRAGMENTS, Fragmentation, fragment
from gruppetto.numerics.layout import Layout, TensorSpec

hows = st.sampled_from(sorted(FRAGMENTERS))
shapes = st.lists(st.integers(0, 12), max_size=3).map(tuple)
names = st.sampled_from(["h.0.a", "h.0.b", "h.1.a", "h.1.b", "h.10.a", "wte.weight", "norm", "bias", "head", "enc.0.a"])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    chosen = draw(st.lists(names, min_size=1, max_size=10, unique=True))
    return Layout(tensors=tuple(TensorSpec(name=n, shape=draw(shapes), dtype="float32") for n in chosen))


def rda(name: str) -> str:
    return "rda"


def mean_if_w(name: str) -> str:
    return "mean" if name.startswith("w") else "rda"


def vectors(*sizes: int) -> Layout:
    return Layout(tensors=tuple(TensorSpec(name=f"t{i}", shape=(n,), dtype="float32") for i, n in enumerate(sizes)))


def named(cut: Fragmentation) -> list[list[str]]:
    return [[piece.name for piece in part.pieces] for part in cut.fragments]


@given(layouts(), st.integers(1, 30), hows)
def test_every_element_lies_in_exactly_one_piece(layout: Layout, num_fragments: int, how: str) -> None:
    cut = fragment(layout, num_fragments, how, mean_if_w)
    found: dict[str, list[tuple[int, int]]] = {tensor.name: [] for tensor in layout.tensors}
    for part in cut.fragments:
        for piece in part.pieces:
            found[piece.name].append((piece.start, piece.stop))
    for tensor in layout.tensors:
        runs = sorted(found[tensor.name])
        assert runs[0][0] == 0 and runs[-1][1] == tensor.numel
        assert all(before[1] == after[0] for before, after in pairwise(runs))
        if len(runs) > 1:
            assert mean_if_w(tensor.name) == "mean" and how == "balanced"
            row = tensor.numel // tensor.shape[0]
            assert all(start % row == 0 and stop > start for start, stop in runs)


@given(layouts(), st.integers(1, 30), hows)
def test_pieces_lie_end_to_end_in_layout_order(layout: Layout, num_fragments: int, how: str) -> None:
    order = {tensor.name: place for place, tensor in enumerate(layout.tensors)}
    for index, part in enumerate(fragment(layout, num_fragments, how, mean_if_w).fragments):
        assert part.index == index
        starts, stops = part.bounds()
        assert list(starts) == [0, *stops[:-1]]
        assert part.numel == stops[-1]
        places = [(order[piece.name], piece.start) for piece in part.pieces]
        assert places == sorted(places)


@given(layouts(), st.integers(1, 30), hows)
def test_no_fragment_is_empty_and_a_lowered_number_is_announced(layout: Layout, num_fragments: int, how: str) -> None:
    cut = fragment(layout, num_fragments, how, mean_if_w)
    assert len(cut.fragments) == cut.num_fragments <= num_fragments
    assert (cut.num_fragments < num_fragments) == bool(cut.notice)
    if layout.numel:
        assert all(part.numel > 0 for part in cut.fragments)


@given(layouts(), st.integers(1, 30), hows, st.randoms(use_true_random=False))
def test_balanced_bins_do_not_depend_on_the_order_of_the_layout(layout, num_fragments, how, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(layout.tensors)
    random.shuffle(shuffled)
    here, there = (
        fragment(some, num_fragments, "balanced", mean_if_w) for some in (layout, Layout(tensors=tuple(shuffled)))
    )
    assert [sorted(names) for names in named(here)] == [sorted(names) for names in named(there)]
    assert fragment(layout, num_fragments, how) == fragment(layout, num_fragments, how)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 3))
def test_the_fullest_bin_is_within_grahams_bound_of_the_best(sizes: list[int], num_fragments: int) -> None:
    cut = fragment(vectors(*sizes), num_fragments, "balanced", rda)
    bins = cut.num_fragments
    best = min(
        max(sum(size for size, bin_ in zip(sizes, choice, strict=True) if bin_ == b) for b in range(bins))
        for choice in product(range(bins), repeat=len(sizes))
    )
    fullest = max(part.numel for part in cut.fragments)
    assert fullest * 3 * bins <= (4 * bins - 1) * best


def test_grahams_worst_case_reaches_the_bound() -> None:
    # Two bins, sizes 3 3 2 2 2: the best is 6 6, largest-first gives 7 5, and 7/6 = 4/3 − 1/6.
    assert [part.numel for part in fragment(vectors(3, 3, 2, 2, 2), 2, "balanced", rda).fragments] == [7, 5]


def test_ties_go_by_name_and_then_to_the_lowest_bin() -> None:
    assert named(fragment(vectors(4, 4, 4, 4, 4), 3, "balanced", rda)) == [["t0", "t3"], ["t1", "t4"], ["t2"]]


def test_a_large_table_is_split_by_rows_only_if_it_is_averaged() -> None:
    layout = Layout(
        tensors=(
            TensorSpec(name="wte.weight", shape=(10, 8), dtype="float32"),
            *(TensorSpec(name=f"h.{i}.w", shape=(5, 2), dtype="float32") for i in range(4)),
        )
    )
    cut = fragment(layout, 4)  # 120 elements, a fair share is 30
    runs = sorted((p.start, p.stop) for part in cut.fragments for p in part.pieces if p.name == "wte.weight")
    assert runs == [(0, 24), (24, 48), (48, 80)]
    assert max(part.numel for part in cut.fragments) <= 40
    assert max(part.numel for part in fragment(layout, 4, merge_of=rda).fragments) == 80


def test_a_table_of_one_row_cannot_be_split() -> None:
    layout = Layout(tensors=(TensorSpec(name="w", shape=(1, 64), dtype="float32"),))
    cut = fragment(layout, 4, "balanced", mean_if_w)
    assert cut.num_fragments == 1
    assert cut.notice == "num_fragments lowered from 4 to 1: the model has too few tensors"


def test_layers_stay_whole_and_are_strided() -> None:
    names = ["wte", "h.0.a", "h.0.b", "h.1.a", "h.1.b", "h.2.a", "ln_f", "head"]
    layout = Layout(tensors=tuple(TensorSpec(name=n, shape=(3,), dtype="float32") for n in names))
    assert named(fragment(layout, 2, "layer")) == [
        ["wte", "h.1.a", "h.1.b", "ln_f"],
        ["h.0.a", "h.0.b", "h.2.a", "head"],
    ]


def test_tensors_are_dealt_round_whatever_their_size() -> None:
    assert named(fragment(vectors(100, 1, 0, 100, 1), 2, "tensor")) == [["t0", "t2", "t3"], ["t1", "t4"]]


def test_a_model_of_empty_tensors_is_one_empty_fragment() -> None:
    cut = fragment(vectors(0, 0), 3)
    assert cut.num_fragments == 1 and cut.fragments[0].numel == 0 and named(cut) == [["t0", "t1"]]


def test_the_hash_tells_cuts_apart() -> None:
    layout = vectors(5, 4, 3, 2)
    cuts = [fragment(layout, p, how) for p in (1, 2, 3) for how in ("balanced", "tensor")]
    by_hash = Counter(cut.fragmentation_hash for cut in cuts)
    assert len(by_hash) == len({str(cut.fragments) for cut in cuts}) > 3


def test_refuses() -> None:
    with pytest.raises(SettingError, match="unknown fragmenter 'even'; use one of"):
        fragment(vectors(1), 1, "even")
    for number in (0, -1, MAX_FRAGMENTS + 1):
        with pytest.raises(SettingError, match=f"num_fragments is {number}"):
            fragment(vectors(1), number)
