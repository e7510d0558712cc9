from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics.codec import CASTS, CODECS, Codec, encode_difference

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
each_cast = pytest.mark.parametrize("codec", CASTS.values(), ids=CASTS)
anything = st.floats(width=32)
ordinary = st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-100)
shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)


def nearest_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The nearest bfloat16 by comparing distances in float64, ties to the even one."""
    bits = x.view(np.uint32)
    down, up = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    with np.errstate(invalid="ignore"):
        near, far = (b.astype(np.uint32).view(np.float32).astype(np.float64) for b in (down, up))
        # The number beyond the largest is infinity; for rounding it counts as the power of two that it would be.
        beyond = np.where(np.isinf(far), np.copysign(2.0**128, far), far)
        to_near, to_far = np.abs(x - near), np.abs(x - beyond)
    is_even = (down >> 16) % 2 == 0
    nearest = np.where((to_near < to_far) | ((to_near == to_far) & is_even), near, far)
    return np.where(np.isfinite(x), nearest, x)


def largest_beside(x: NDArray[np.float32], codec: Codec) -> NDArray[np.float64]:
    """The largest magnitude in the block of each element."""
    size = np.abs(x.astype(np.float64)).reshape(-1)
    blocks = np.pad(size, (0, -size.size % codec.block_numel)).reshape(-1, codec.block_numel)
    return np.repeat(blocks.max(axis=1), codec.block_numel)[: size.size].reshape(x.shape)


@given(arrays(np.float32, st.integers(0, 3000), elements=anything))
def test_bf16_is_the_nearest_bfloat16(x: NDArray[np.float32]) -> None:
    bf16 = CODECS["bf16"]
    np.testing.assert_array_equal(bf16.decode(bf16.encode(x), x.size), nearest_bfloat16(x))


def test_bf16_ties_go_to_even_and_large_values_to_infinity() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7F7FFF, 0x7F7F8000, 0xFF7F8000], np.uint32)
    words = CODECS["bf16"].encode(bits.view(np.float32)).view(np.uint16)
    assert [hex(w) for w in words] == ["0x3f80", "0x3f82", "0x3f81", "0x3f80", "0x7f7f", "0x7f80", "0xff80"]


@each_cast
def test_every_nan_stays_nan_and_infinity_infinity(codec: Codec) -> None:
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(codec.decode(codec.encode(nans), nans.size)).all()
    infinite = np.float32([np.inf, -np.inf])
    np.testing.assert_array_equal(codec.decode(codec.encode(infinite), 2), infinite)


@each_codec
@given(x=arrays(np.float32, shapes, elements=ordinary))
def test_any_shape_comes_back_within_the_stated_error(codec: Codec, x: NDArray[np.float32]) -> None:
    payload = codec.encode(x)
    assert payload.dtype == np.uint8 and payload.shape == (codec.payload_bytes(x.size),)
    back = codec.decode(payload.tobytes(), x.size).reshape(x.shape)
    assert (np.abs(back.astype(np.float64) - x) <= codec.relative_error * largest_beside(x, codec)).all()


@each_cast
@given(x=arrays(np.float32, shapes, elements=anything))
def test_encoding_again_changes_nothing(codec: Codec, x: NDArray[np.float32]) -> None:
    once = codec.decode(codec.encode(x), x.size)
    np.testing.assert_array_equal(codec.decode(codec.encode(once), x.size), once)


@each_codec
@given(seed=st.integers(0, 2**32 - 1), shape=st.one_of(shapes, st.sampled_from([(1023,), (1025,), (2, 1024)])))
def test_the_difference_is_the_encoded_difference(codec: Codec, seed: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    base, theta = (np.asarray(rng.standard_normal(shape), np.float32) for _ in range(2))
    payload = encode_difference(base, theta, codec)
    np.testing.assert_array_equal(payload, codec.encode(base - theta))
    reused = np.empty_like(payload)
    assert encode_difference(base, theta, codec, out=reused) is reused
    np.testing.assert_array_equal(payload, reused)


@each_codec
def test_strided_input_and_odd_addresses(codec: Codec) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6).T
    assert not x.flags.c_contiguous
    payload = b"?" + codec.encode(x).tobytes()
    out = np.empty(24, np.float32)
    assert codec.decode(memoryview(payload)[1:], 24, out=out) is out
    np.testing.assert_array_equal(out, codec.decode(codec.encode(np.ascontiguousarray(x)), 24))
    np.testing.assert_allclose(out.reshape(6, 4), x, atol=codec.relative_error * float(x.max()))


@each_codec
@pytest.mark.parametrize("numel", [0, 200, 400])
def test_refuses_a_payload_of_the_wrong_length(codec: Codec, numel: int) -> None:
    payload = codec.encode(np.zeros(3, np.float32))
    with pytest.raises(
        ProtocolError, match=rf"{numel} values in {codec.name} are \d+ bytes, but {payload.nbytes} came"
    ):
        codec.decode(payload, numel)
