from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics.codec import CODECS, Codec
from gruppetto.numerics.fragments import FragmentSpec, Piece
from gruppetto.numerics.inspection import ChunkInspector, inspect

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
sizes = st.lists(st.sampled_from([0, 1, 2, 3, 700, 1024, 1025]), min_size=1, max_size=6)


def spec_of(sizes: list[int]) -> FragmentSpec:
    starts = np.cumsum([0, *sizes])
    pieces = tuple(
        Piece(name=f"t{i}", start=0, stop=size, offset=int(start))
        for i, (size, start) in enumerate(zip(sizes, starts, strict=False))
    )
    return FragmentSpec(index=0, pieces=pieces, numel=sum(sizes))


def norms_sq(x: NDArray[np.float32], spec: FragmentSpec) -> list[float]:
    return [float(np.sum(x[p.offset : p.offset + p.numel].astype(np.float64) ** 2)) for p in spec.pieces]


@each_codec
@given(sizes=sizes, seed=st.integers(0, 2**32 - 1), exponent=st.integers(-120, 120))
def test_norms_are_those_of_the_decoded_values_at_any_scale(
    codec: Codec, sizes: list[int], seed: int, exponent: int
) -> None:
    spec = spec_of(sizes)
    x = (np.random.default_rng(seed).standard_normal(spec.numel) * 2.0**exponent).astype(np.float32)
    payload = codec.encode(x)
    seen = inspect(payload, codec, spec)
    np.testing.assert_allclose(seen.norm_sq, norms_sq(codec.decode(payload, x.size), spec), rtol=1e-13)
    np.testing.assert_array_equal(seen.norm, np.sqrt(seen.norm_sq))
    assert seen.finite


@each_codec
@given(sizes=sizes, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_chunks_cut_anywhere_give_the_whole(codec: Codec, sizes: list[int], seed: int, data: st.DataObject) -> None:
    spec = spec_of(sizes)
    payload = codec.encode(np.random.default_rng(seed).standard_normal(spec.numel).astype(np.float32)).tobytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), max_size=8)))
    inspector = ChunkInspector(spec, codec)
    for start, stop in zip([0, *cuts], [*cuts, len(payload)], strict=True):
        inspector.update(memoryview(payload)[start:stop])
    np.testing.assert_allclose(inspector.finish().norm_sq, inspect(payload, codec, spec).norm_sq, rtol=1e-13)


@each_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@given(sizes=sizes.filter(lambda sizes: sum(sizes) > 0), data=st.data())
def test_one_bad_value_anywhere_is_found_in_its_piece_and_what_shares_its_block(
    codec: Codec, bad: float, sizes: list[int], data: st.DataObject
) -> None:
    spec = spec_of(sizes)
    x = np.ones(spec.numel, np.float32)
    at = data.draw(st.integers(0, spec.numel - 1))
    x[at] = bad
    seen = inspect(codec.encode(x), codec, spec)
    assert not seen.finite
    first = at // codec.block_numel * codec.block_numel
    last = min(first + codec.block_numel, spec.numel)
    guilty = [max(p.offset, first) < min(p.offset + p.numel, last) for p in spec.pieces]
    assert list(~np.isfinite(seen.norm_sq)) == guilty


@given(arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_no_finite_value_is_ever_called_infinite(x: NDArray[np.float32]) -> None:
    assert inspect(CODECS["fp32"].encode(x), CODECS["fp32"], spec_of([5])).finite


@each_codec
def test_refuses_too_many_bytes_at_once_and_too_few_at_the_end(codec: Codec) -> None:
    spec = spec_of([3])
    payload = codec.encode(np.ones(3, np.float32)).tobytes()
    inspector = ChunkInspector(spec, codec)
    inspector.update(payload[:-1])
    with pytest.raises(ProtocolError, match="ends 1 bytes too early"):
        inspector.finish()
    with pytest.raises(ProtocolError, match="2 bytes too long"):
        inspector.update(payload[-1:] + b"??")
    with pytest.raises(ProtocolError, match="too long"):
        inspect(payload + b"?", codec, spec)
