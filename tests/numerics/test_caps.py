"""A fold with caps is a fold of the shortened gradient, for every rule; and nobody else's part changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics import CODECS, MERGE_RULES, Accumulator, FragmentSpec, Piece, inspect
from gruppetto.numerics.direction import SAMPLED_BLOCKS, cosine
from gruppetto.numerics.kernels import BLOCK

SIZES = (1, 7, 1500)


def spec_of(sizes: tuple[int, ...]) -> FragmentSpec:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pieces = tuple(
        Piece(name=f"t{i}", start=0, stop=n, offset=at) for i, (n, at) in enumerate(zip(sizes, starts, strict=True))
    )
    return FragmentSpec(index=0, pieces=pieces, numel=sum(sizes))


SPEC = spec_of(SIZES)


def shortened(delta: NDArray[np.float32], caps: list[tuple[int, float]]) -> NDArray[np.float32]:
    short = delta.astype(np.float64)
    for p, cap in caps:
        piece = slice(SPEC.pieces[p].offset, SPEC.pieces[p].offset + SIZES[p])
        norm = np.linalg.norm(short[piece])
        short[piece] *= min(1.0, cap / norm) if norm else 1.0
    return short.astype(np.float32)


@pytest.mark.parametrize("rule", MERGE_RULES)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 5),
    capped=st.lists(st.tuples(st.integers(0, 2), st.floats(1e-3, 1e3)), max_size=3, unique_by=lambda pair: pair[0]),
    data=st.data(),
)
def test_caps_shorten_a_piece_and_keep_its_direction(rule, seed, count, capped, data) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    deltas = [(rng.standard_normal(SPEC.numel) * 10 ** rng.uniform(-2, 4)).astype(np.float32) for _ in range(count)]
    weights = [float(w) for w in rng.uniform(0.5, 2.0, count)]
    who = data.draw(st.integers(0, count - 1))
    with_caps, without = (Accumulator(SPEC, [rule] * 3) for _ in range(2))
    for m, (delta, weight) in enumerate(zip(deltas, weights, strict=True)):
        caps = capped if m == who else []
        stats = with_caps.fold(delta, weight, caps=caps)
        np.testing.assert_array_equal(stats.norm, inspect(delta.view(np.uint8), CODECS["fp32"], SPEC).norm)
        without.fold(shortened(delta, caps), weight)
    merged, wanted = with_caps.merged(), without.merged()
    for piece in SPEC.pieces:
        part = slice(piece.offset, piece.offset + piece.numel)
        np.testing.assert_allclose(merged[part], wanted[part], rtol=1e-4, atol=1e-4 * np.abs(wanted[part]).max())


def test_a_single_huge_piece_is_folded_at_its_yardstick() -> None:
    running = Accumulator(SPEC, ["rda", "mean", "rda"])
    running.fold(np.full(SPEC.numel, 1e30, np.float32), 1.0, caps=[(0, 2.0), (1, 3.0), (2, 4.0)])
    theta = np.zeros(SPEC.numel, np.float32)
    stats = running.outer_step(theta, (), "sgd", 1.0, 0.0)
    np.testing.assert_allclose(stats.merged_norm, [2.0, 3.0, 4.0], rtol=1e-6)
    assert stats.finite


# ── directions ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(seed=st.integers(0, 2**32 - 1), numel=st.sampled_from([1, 7, BLOCK, 5 * BLOCK + 3]))
def test_the_cosine_of_a_small_fragment_is_exact(codec, seed, numel) -> None:  # type: ignore[no-untyped-def]
    a, b = np.random.default_rng(seed).standard_normal((2, numel)).astype(np.float32)
    payload = codec.encode(a)
    a = codec.decode(payload, numel).astype(np.float64)
    wanted = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
    assert cosine(payload, codec, b) == pytest.approx(wanted, abs=1e-6)


def test_that_of_a_large_one_is_a_good_estimate() -> None:
    rng = np.random.default_rng(0)
    numel = 20 * SAMPLED_BLOCKS * BLOCK + 5
    a, b = (rng.standard_normal(numel).astype(np.float32) for _ in range(2))
    a += 0.3 * b
    found = cosine(a.view(np.uint8), CODECS["fp32"], b)
    assert found == pytest.approx(0.3 / np.sqrt(1 + 0.3**2), abs=0.02)
    assert cosine((-a).view(np.uint8), CODECS["fp32"], b) == pytest.approx(-found)


def test_there_is_none_without_a_momentum_or_a_contribution() -> None:
    one, none = np.ones(4, np.float32), np.zeros(4, np.float32)
    assert cosine(one.view(np.uint8), CODECS["fp32"], none) is None
    assert cosine(none.view(np.uint8), CODECS["fp32"], one) is None
    with pytest.raises(ProtocolError, match="5 values in fp32 are 20 bytes, but 16 came"):
        cosine(one.view(np.uint8), CODECS["fp32"], np.ones(5, np.float32))
