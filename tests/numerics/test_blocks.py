"""The codecs of blocks against a twin in float64 numpy, and what error feedback promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gruppetto.numerics.accumulate import Accumulator
from gruppetto.numerics.codec import CODECS, Codec, encode_difference, encode_with_rest
from gruppetto.numerics.direction import cosine
from gruppetto.numerics.fragments import FragmentSpec, Piece
from gruppetto.numerics.inspection import inspect
from gruppetto.numerics.words import GROUP

BLOCK_CODECS = {name: codec for name, codec in CODECS.items() if codec.block_numel > 1}
each_block_codec = pytest.mark.parametrize("codec", BLOCK_CODECS.values(), ids=BLOCK_CODECS)
sizes = st.sampled_from([0, 1, 5, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2100])
seeds = st.integers(0, 2**32 - 1)
LEVELS = {
    "int8": np.arange(-127, 128).astype(np.float64),
    "int4": np.arange(-7, 8).astype(np.float64),
    "fp4-e3m0": np.array([0.0, *(s * 2.0**-k for k in range(7) for s in (1, -1))]),
}


def some(seed: int, numel: int, exponent: int = 0) -> NDArray[np.float32]:
    """Values of very unlike sizes, block by block, many of them on the borders between codes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(numel) * 10.0 ** rng.uniform(-6, 3, -(-numel // GROUP)).repeat(GROUP)[:numel]
    ties = rng.random(numel) < 0.2
    x[ties] = rng.integers(-14, 15, numel)[ties] / 2
    return (x * 2.0**exponent).astype(np.float32)


def twin(x: NDArray[np.float32], codec: Codec) -> NDArray[np.float64]:
    """What is decoded, slowly: the nearest of all values that a code can say, in float64."""
    out = np.zeros(x.size)
    for at in range(0, x.size, GROUP):
        block = x[at : at + GROUP].astype(np.float64)
        largest = np.abs(block).max()
        if largest >= 2.0**-100:
            levels = np.sort(LEVELS[codec.name])
            exact = np.float32(np.float32(largest) / np.float32(levels[-1]))
            scale = float(
                (np.array([exact]).view(np.uint32) + 0xFFFF & 0xFFFF0000).astype(np.uint32).view(np.float32)[0]
            )
            out[at : at + GROUP] = scale * levels[np.abs(block[:, None] / scale - levels).argmin(axis=1)]
    return out


@each_block_codec
@given(seed=seeds, numel=sizes, exponent=st.integers(-90, 90))
def test_every_value_becomes_a_nearest_one_and_decoding_is_exact(
    codec: Codec, seed: int, numel: int, exponent: int
) -> None:
    x = some(seed, numel, exponent)
    back, wanted = codec.decode(codec.encode(x), numel).astype(np.float64), twin(x, codec)
    # At a tie, or as near to one as float32 can tell, both neighbours are right; else the two are equal.
    far, near = np.abs(back - x), np.abs(wanted - x)
    assert (far <= near * (1 + 1e-6)).all()
    clear = far < near * (1 - 1e-6)
    assert not clear.any()
    assert ((back == wanted) | (np.abs(far - near) <= 1e-6 * np.abs(x))).all()


@each_block_codec
@given(seed=seeds, numel=sizes.filter(bool), bad=st.sampled_from([np.nan, np.inf, -np.inf]), data=st.data())
def test_what_is_not_finite_spoils_its_block_and_no_other(
    codec: Codec, seed: int, numel: int, bad: float, data: st.DataObject
) -> None:
    x = some(seed, numel)
    at = data.draw(st.integers(0, numel - 1))
    x[at] = bad
    back = codec.decode(codec.encode(x), numel)
    same_block = np.arange(numel) // GROUP == at // GROUP
    assert np.isnan(back[same_block]).all() and np.isfinite(back[~same_block]).all()


@each_block_codec
@given(payload_seed=seeds, numel=sizes)
def test_what_is_called_finite_decodes_to_finite_values_whoever_wrote_it(
    codec: Codec, payload_seed: int, numel: int
) -> None:
    raw = np.random.default_rng(payload_seed).integers(0, 256, codec.payload_bytes(numel)).astype(np.uint8)
    spec = FragmentSpec(index=0, pieces=(Piece(name="w", start=0, stop=numel, offset=0),), numel=numel)
    seen, values = inspect(raw, codec, spec), codec.decode(raw, numel)
    if seen.finite:
        assert np.isfinite(values).all()
        assert seen.norm_sq[0] == pytest.approx(float(np.sum(values.astype(np.float64) ** 2)), rel=1e-13)
    elif np.isfinite(values).all():  # by the word of a scale that no encoder writes
        assert np.abs(values).max() > 2.0**100


@each_block_codec
@given(seed=seeds, numel=sizes, steps=st.integers(1, 6))
def test_what_was_sent_and_what_is_left_are_what_was_meant(codec: Codec, seed: int, numel: int, steps: int) -> None:
    """Σ decoded + rest = Σ Δ, exactly: on numbers for which float32 sums are exact, there is nothing to round."""
    rng = np.random.default_rng(seed)
    meant, sent = np.zeros(numel), np.zeros(numel)
    rest, left = None, np.empty(numel, np.float32)
    for _ in range(steps):
        base, theta = (rng.integers(-1000, 1001, numel).astype(np.float32) for _ in range(2))
        payload = encode_with_rest(base, theta, rest, codec, left)
        said = codec.decode(payload, numel)
        wanted = base - theta if rest is None else (base - theta) + rest
        np.testing.assert_array_equal(said + left, wanted)
        np.testing.assert_array_equal(payload, codec.encode(wanted))
        if rng.random() < 0.7:  # it was merged; otherwise nothing of it counts, and the old rest stays
            meant, sent = meant + base - theta, sent + said
            rest, left = left, np.empty(numel, np.float32)
    np.testing.assert_array_equal(sent + (0 if rest is None else rest), meant)


@each_block_codec
@given(seed=seeds, numel=sizes)
def test_the_rest_is_exact_for_any_values(codec: Codec, seed: int, numel: int) -> None:
    base, theta, rest = (some(seed + k, numel) for k in range(3))
    left = np.empty(numel, np.float32)
    payload = encode_with_rest(base, theta, rest, codec, left)
    wanted = (base - theta) + rest
    said = codec.decode(payload, numel).astype(np.float64)
    np.testing.assert_array_equal(said + left.astype(np.float64), wanted.astype(np.float64))
    np.testing.assert_array_equal(
        encode_with_rest(base, theta, None, codec, left), encode_difference(base, theta, codec)
    )


@each_block_codec
@given(seed=seeds, cap=st.floats(0.01, 1.0))
def test_folding_what_is_compressed_is_folding_what_it_says(codec: Codec, seed: int, cap: float) -> None:
    """With the same norms, so that every gate gives the same verdict, and the same bits in the merge; where the length
    of the running total decides, as near as its float32 sums, which may be taken in any order."""
    numels = (300, 128, 77, 1024)
    offsets = np.cumsum([0, *numels])
    pieces = tuple(
        Piece(name=f"t{i}", start=0, stop=n, offset=int(at))
        for i, (n, at) in enumerate(zip(numels, offsets, strict=False))
    )
    spec = FragmentSpec(index=0, pieces=pieces, numel=sum(numels))
    rules = ["rda", "mean", "median", "clipped-rda"]
    packed, plain = Accumulator(spec, rules), Accumulator(spec, rules)
    for k in range(3):
        payload = codec.encode(some(seed + k, spec.numel))
        values = codec.decode(payload, spec.numel)
        seen, told = inspect(payload, codec, spec), inspect(CODECS["fp32"].encode(values), CODECS["fp32"], spec)
        np.testing.assert_allclose(seen.norm_sq, told.norm_sq, rtol=1e-13)
        momentum = some(seed - 1 if seed else 7, spec.numel)
        assert cosine(payload, codec, momentum) == cosine(CODECS["fp32"].encode(values), CODECS["fp32"], momentum)
        caps = [(0, cap * float(told.norm[0])), (3, cap * float(told.norm[3]))]
        packed.fold_encoded(payload, codec, k + 1.0, told, caps)
        plain.fold(values, k + 1.0, told, caps)
    np.testing.assert_array_equal(packed.room, plain.room)
    for piece, rule in zip(pieces, rules, strict=True):
        a, b = (each.merged()[piece.offset : piece.offset + piece.stop] for each in (packed, plain))
        np.testing.assert_allclose(a, b, rtol=5e-7 if "rda" in rule else 0, atol=0)


@pytest.mark.parametrize(("name", "bits"), [("int8", 8.125), ("int4", 4.125), ("fp4-e3m0", 4.125)])
def test_true_bits(name: str, bits: float) -> None:
    codec = CODECS[name]
    assert codec.bits == bits and codec.payload_bytes(128 * 1000) == int(bits * 16 * 1000)
    assert codec.payload_bytes(1) == codec.word_bytes and codec.payload_bytes(0) == 0
