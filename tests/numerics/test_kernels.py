from __future__ import annotations

import inspect as inspect_source
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.numerics import compiling, kernels, reading, squares, words, writing
from gruppetto.numerics.accumulate import Accumulator
from gruppetto.numerics.codec import CODECS, encode_difference, encode_with_rest
from gruppetto.numerics.downlink import follow, take_step
from gruppetto.numerics.fragments import FragmentSpec, Piece
from gruppetto.numerics.kernels import BLOCK, BLOCK_ERROR

COMPILED = (
    "sum_squares",
    "fold",
    "decode",
    "encode",
    "encode_difference",
    "encode_with_rest",
    "nesterov_step",
    "sgd_step",
    "sample_products",
    "take_step",
    "follow",
)


def fold_once(total: np.ndarray, delta: np.ndarray, scale: float) -> float:  # type: ignore[type-arg]
    """The squared norm that one fold of a single piece reports."""
    bounds = np.zeros(1, np.int64), np.array([total.size])
    squares, one = np.zeros(1), np.full(1, scale, np.float32)
    nowhere = np.full(1, -1, np.int64)
    kernels.fold(total, kernels.read_only(delta), *bounds, one, squares, np.zeros(0, np.float32), nowhere, one)
    return float(squares[0])


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 15, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3]))
def test_fold_gives_the_bits_of_numpy(seed: int, numel: int) -> None:
    rng = np.random.default_rng(seed)
    total, delta = (rng.standard_normal(numel).astype(np.float32) for _ in range(2))
    wanted = total + np.float32(0.3) * delta
    squares = fold_once(total, delta, 0.3)
    np.testing.assert_array_equal(total, wanted)
    assert squares == pytest.approx(float(np.sum(wanted.astype(np.float64) ** 2)), rel=BLOCK_ERROR)


@given(st.floats(2.0**-10, 2.0**10, width=32), st.sampled_from([BLOCK, 64 * BLOCK]))
def test_a_block_sum_keeps_its_bound_where_every_rounding_errs_the_same_way(value: float, numel: int) -> None:
    squares = fold_once(np.zeros(numel, np.float32), np.full(numel, value, np.float32), 1.0)
    assert squares == pytest.approx(numel * float(np.float32(value)) ** 2, rel=BLOCK_ERROR)


def test_no_kind_of_caller_makes_a_kernel_compile_again() -> None:
    kernels.warm()
    before = {name: len(getattr(kernels, name).signatures) for name in COMPILED}
    spec = FragmentSpec(index=0, pieces=(Piece(name="w", start=0, stop=6, offset=0),), numel=6)
    values = np.arange(6, dtype=np.float32)
    for codec in CODECS.values():
        running = Accumulator(spec, ["rda"])
        payload = codec.encode(values.reshape(2, 3).T)
        encode_difference(values, values[::-1], codec)
        if codec.keeps_rest:
            encode_with_rest(values, values[::-1], None, codec, left=np.empty(6, np.float32))
            encode_with_rest(values, values[::-1], values, codec, left=np.empty(6, np.float32))
            step, left, _ = take_step(values, values[::-1].copy(), None, codec)
            take_step(values, values.copy(), left, codec, left=np.empty(left.size, np.uint8))
            follow(values, step.tobytes(), codec)
        for form in (payload, payload.tobytes(), bytearray(payload), memoryview(payload), payload.tobytes() * 1):
            running.fold_encoded(form, codec, 2)
        running.fold_encoded(memoryview(b"?" + payload.tobytes())[1:], codec, 1.5)
        running.outer_step(values.copy(), (), "sgd", 1, 0)
    assert {name: len(getattr(kernels, name).signatures) for name in COMPILED} == before


def test_a_read_only_view_shares_memory_and_leaves_the_original_writable() -> None:
    original = np.zeros(2, np.float32)
    view = kernels.read_only(original)
    original[0] = 1
    assert view[0] == 1 and not view.flags.writeable


def test_what_is_compiled_is_kept_for_this_state_of_all_its_sources() -> None:
    """A body in another file is part of a pass: the cache on disk has to notice when it changes."""
    made_of = {
        Path(inspect_source.getfile(module)) for module in (compiling, kernels, reading, squares, words, writing)
    }
    assert {Path(compiling.__file__).with_name(f"{name}.py") for name in compiling.SOURCES} == made_of
    cache = kernels.fold._cache  # type: ignore[attr-defined]
    (signature, *_) = kernels.fold.signatures  # type: ignore[attr-defined]
    codegen = kernels.fold.targetctx.codegen()  # type: ignore[attr-defined]
    before = cache._index_key(signature, codegen)
    assert before == cache._index_key(signature, codegen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(cache), "stamp", ((0, 0),))
        assert cache._index_key(signature, codegen) != before
