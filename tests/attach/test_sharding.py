from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gruppetto.attach.sharding import FlatModel, plain_name
from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics import fragment
from gruppetto.numerics.shares import supplied

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def several(least: int, most: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Shapes of which some may be empty: a model has elements."""
    return st.lists(SHAPES, min_size=least, max_size=most).filter(lambda shapes: any(math.prod(s) for s in shapes))


FLOATS = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


def a_model(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype] | None = None) -> nn.ParameterDict:
    generator = torch.Generator().manual_seed(len(shapes))
    dtypes = dtypes or [torch.float32] * len(shapes)
    return nn.ParameterDict(
        {
            f"p{i}.wte.weight".replace(".", "_"): nn.Parameter(torch.randn(shape, generator=generator).to(dtype))
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        }
    )


def cut(flat: FlatModel, num_fragments: int, rule: str = "mean") -> None:
    flat.cut(fragment(flat.layout, num_fragments, merge_of=lambda name: rule))


@given(shapes=several(1, 6), num_fragments=st.integers(1, 5))
def test_every_element_is_read_and_written_exactly_once(shapes: list[tuple[int, ...]], num_fragments: int) -> None:
    model = a_model(shapes)
    flat = FlatModel(model)
    cut(flat, num_fragments)
    before = [p.detach().clone() for p in model.values()]
    vectors = []
    for p in range(flat.num_fragments):
        vectors.append(np.full(flat.numel(p), np.nan, np.float32))
        flat.read(p, vectors[p])
    read = np.sort(np.concatenate(vectors))
    np.testing.assert_array_equal(read, np.sort(torch.cat([t.flatten() for t in before]).numpy()))
    for p, vector in enumerate(vectors):
        flat.write(p, vector * 2)
    for parameter, old in zip(model.values(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), old * 2, rtol=0, atol=0)


@given(
    shapes=several(4, 4),
    dtypes=st.lists(FLOATS, min_size=4, max_size=4),
    num_fragments=st.integers(1, 4),
)
def test_a_rounded_base_is_what_the_model_holds(
    shapes: list[tuple[int, ...]], dtypes: list[torch.dtype], num_fragments: int
) -> None:
    flat = FlatModel(a_model(shapes, dtypes))
    cut(flat, num_fragments)
    rng = np.random.default_rng(len(shapes))
    for p in range(flat.num_fragments):
        arrived = rng.standard_normal(flat.numel(p), np.float32)
        flat.write(p, arrived)
        base, theta = arrived.copy(), np.empty_like(arrived)
        flat.round(p, base)
        flat.read(p, theta)
        np.testing.assert_array_equal(base, theta)


@given(
    shapes=several(1, 5),
    size=st.integers(1, 4),
    num_fragments=st.integers(1, 4),
    data=st.data(),
)
def test_of_what_several_ranks_hold_each_copies_what_it_supplies(
    shapes: list[tuple[int, ...]], size: int, num_fragments: int, data: st.DataObject
) -> None:
    """Its rows and no more: what several hold costs each of them its share."""
    model = a_model(shapes)
    widths = {name: max(1, int(np.prod(p.shape[1:]))) for name, p in model.items()}
    monkey = pytest.MonkeyPatch()
    monkey.setattr("gruppetto.numerics.shares.SMALL_NUMEL", data.draw(st.sampled_from([0, 4, 4096])))
    with monkey.context():
        flats = [FlatModel(model) for _ in range(size)]
        shares = supplied(flats[0].layout, [flat.held for flat in flats])
    monkey.undo()
    for flat, own in zip(flats, shares, strict=True):
        flat.spread(own)
        cut(flat, num_fragments)
        for p in range(flat.num_fragments):
            whole, mine = (np.full(flat.numel(p), np.nan, np.float32) for _ in range(2))
            flat.read(p, whole)
            flat.read_supplied(p, mine)
            share = flat.share(p)
            assert share is not None
            for start, stop in share.places:
                np.testing.assert_array_equal(mine[start:stop], whole[start:stop])
            read = np.isfinite(mine)
            np.testing.assert_array_equal(mine[read], whole[read])
            assert read.sum() <= share.supplied.numel + 2 * sum(widths.values())


def test_writes_reach_a_strided_parameter_without_replacing_it() -> None:
    storage = torch.zeros(6, 8)
    model = nn.Module()
    model.wte = nn.Parameter(storage.T)  # columns of what lies in memory
    flat = FlatModel(model)
    cut(flat, 3)
    assert flat.num_fragments == 3, "the embedding is split by rows"
    for p in range(3):
        flat.write(p, np.full(flat.numel(p), p + 1, np.float32))
    assert torch.equal(storage, model.wte.detach().T)
    assert sorted(storage.unique().tolist()) == [1.0, 2.0, 3.0]


def test_a_parameter_may_get_other_memory() -> None:
    """``.data = ...`` leaves the parameter what it is; so what is known of it must not be where it lay."""
    model = a_model([(4, 2), (3,), ()])
    flat = FlatModel(model)
    cut(flat, 1)
    for parameter in model.values():
        parameter.data = torch.full_like(parameter, 7.0)
    values = np.zeros(flat.numel(0), np.float32)
    flat.read(0, values)
    assert set(values.tolist()) == {7.0}
    flat.write(0, values + 1)
    assert all((parameter == 8.0).all() for parameter in model.values())


def test_tied_weights_are_one_tensor() -> None:
    model = nn.Module()
    model.embed = nn.Embedding(5, 3)
    model.lm_head = nn.Linear(3, 5, bias=False)
    model.lm_head.weight = model.embed.weight
    assert [t.name for t in FlatModel(model).layout.tensors] == ["embed.weight"]


def test_weights_that_are_tied_by_their_memory_alone_are_refused() -> None:
    """As two tensors of the run each would take what is written for the other for work of its own."""
    model = nn.Module()
    model.embed, model.lm_head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    model.lm_head.weight.data = model.embed.weight.data
    with pytest.raises(LayoutError, match=r"'lm_head\.weight': shares memory with 'embed\.weight'.* tie them"):
        FlatModel(model)


def test_frozen_parameters_stay_out_unless_asked_for() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert [t.name for t in FlatModel(model).layout.tensors] == ["weight"]
    assert [t.name for t in FlatModel(model, trainable_only=False).layout.tensors] == ["weight", "bias"]


def test_wrappers_do_not_change_the_layout() -> None:
    plain, wrapped = nn.Sequential(nn.Linear(2, 2)), nn.Module()
    wrapped.module = nn.Module()
    wrapped.module._orig_mod = plain
    assert FlatModel(wrapped).layout == FlatModel(plain).layout
    assert plain_name("module.h.0._orig_mod.w") == "h.0.w"
    assert plain_name("encoder.module.w") == "encoder.module.w", "only outside is it a wrapper's name"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameters"),
        (nn.Linear(2, 2, device="meta"), "meta device"),
        (nn.Linear(2, 2, dtype=torch.complex64), "complex64 cannot be averaged.*freeze it"),
        (nn.ParameterDict({"__metadata__": nn.Parameter(torch.ones(2))}), "no safetensors file can hold"),
        (nn.ParameterDict({"x\ud800": nn.Parameter(torch.ones(2))}), "no safetensors file can hold"),
    ],
)
def test_what_cannot_be_averaged_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        FlatModel(model)


def test_names_that_differ_only_by_a_wrappers_part_are_told_apart() -> None:
    model = nn.Module()
    model.module, model.weight = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(1))
    with pytest.raises(LayoutError, match=r"'weight' and 'module\.weight' .*rename one") as caught:
        FlatModel(model)
    assert "tied" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "says"),
    [
        (lambda: nn.UninitializedParameter(), "has no shape yet; call the model once"),
        (lambda: nn.Parameter(torch.eye(3).to_sparse()), "layout is torch.sparse_coo; make it dense"),
        (lambda: nn.Parameter(torch.eye(3).to_sparse_csr()), "layout is torch.sparse_csr; make it dense"),
        (lambda: nn.Parameter(torch.eye(3).to_mkldnn()), "make it dense"),
        (lambda: nn.Parameter(torch.ones(3, 1).expand(3, 4)), "share memory"),
        (lambda: nn.Parameter(torch.ones(8).as_strided((3, 4), (1, 1))), "share memory"),
        (lambda: nn.Parameter(torch.ones(3, dtype=torch.complex64).conj().imag), "negated view"),
    ],
)
def test_a_parameter_of_an_odd_kind_is_named(parameter: Callable[[], nn.Parameter], says: str) -> None:
    model = nn.Linear(2, 2)
    model.odd = parameter()
    with pytest.raises(LayoutError, match=rf"^parameter 'odd': .*{says}"):
        FlatModel(model)


def test_an_integer_parameter_that_is_frozen_already_is_not_to_be_frozen() -> None:
    model = nn.Linear(2, 2)
    model.count = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    assert [t.name for t in FlatModel(model).layout.tensors] == ["weight", "bias"]
    with pytest.raises(LayoutError, match=r"'count'.*make it a buffer") as caught:
        FlatModel(model, trainable_only=False)
    assert "freeze" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        (torch.float32, float("nan"), False),
        (torch.bfloat16, float("-inf"), False),
        (torch.float64, 1e300, False),
        (torch.float64, 1e38, True),
    ],
)
def test_values_that_float32_cannot_hold_are_named(dtype: torch.dtype, value: float, fits: bool) -> None:
    model = nn.Linear(2, 2).to(dtype)
    with torch.no_grad():
        model.bias[1] = value
    if fits:
        FlatModel(model).check_finite()
    else:
        with pytest.raises(SettingError, match=r"'bias': holds NaN or infinity"):
            FlatModel(model).check_finite()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())),
            "'0.weight': has been replaced",
        ),
        (lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True), "replaced"),
        (lambda m: m.__setitem__(0, nn.Linear(2, 2)), "has been replaced"),
        (lambda m: m.pop(0), "'0.weight': has been replaced or removed"),
        (lambda m: m.half(), "float16"),
        (lambda m: m.requires_grad_(False), None),
        (lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}), None),
        (lambda m: m.append(nn.Linear(2, 2)), None),
        (lambda m: nn.utils.prune.random_unstructured(m[0], "weight", 0.5), None),
    ],
)
def test_a_model_that_is_no_longer_the_one_attached(change: Callable[[nn.Sequential], Any], says: str | None) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    flat = FlatModel(model)
    flat.check_unchanged()
    change(model)
    if says is None:
        flat.check_unchanged()
    else:
        with pytest.raises(LayoutError, match=says):
            flat.check_unchanged()
