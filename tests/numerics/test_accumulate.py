from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gruppetto.errors import ProtocolError
from gruppetto.numerics import accumulate
from gruppetto.numerics.accumulate import Accumulator
from gruppetto.numerics.codec import CODECS, Codec
from gruppetto.numerics.fragments import FragmentSpec, Piece
from gruppetto.numerics.inspection import inspect
from gruppetto.numerics.merge import MERGE_RULES
from gruppetto.numerics.outer import OUTER_OPTIMIZERS

Vector = NDArray[np.float32]
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
each_optimizer = pytest.mark.parametrize("optimizer", sorted(OUTER_OPTIMIZERS))

pieces = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 7, 1024, 1500]), st.sampled_from(sorted(MERGE_RULES))), min_size=1, max_size=5
)
weight_lists = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e9)), min_size=1, max_size=5)
seeds = st.integers(0, 2**32 - 1)


def spec_of(sizes: list[int]) -> FragmentSpec:
    starts = np.cumsum([0, *sizes])
    listed = tuple(
        Piece(name=f"t{i}", start=0, stop=size, offset=int(start))
        for i, (size, start) in enumerate(zip(sizes, starts, strict=False))
    )
    return FragmentSpec(index=0, pieces=listed, numel=sum(sizes))


def some_deltas(seed: int, spec: FragmentSpec, count: int) -> list[Vector]:
    """Gradients of very unlike lengths, some of them zero in a whole piece."""
    rng = np.random.default_rng(seed)
    deltas = [(rng.standard_normal(spec.numel) * 10 ** rng.uniform(-6, 3)).astype(np.float32) for _ in range(count)]
    for delta in deltas:
        for piece in spec.pieces:
            if rng.random() < 0.15:
                delta[piece.offset : piece.offset + piece.numel] = 0
    return deltas


def in_one_go(deltas: list[Vector], weights: list[float], spec: FragmentSpec, rules: list[str]) -> Vector:
    merged = np.zeros(spec.numel, np.float32)
    for piece, rule in zip(spec.pieces, rules, strict=True):
        part = slice(piece.offset, piece.offset + piece.numel)
        merged[part] = MERGE_RULES[rule]([delta[part] for delta in deltas], weights)
    return merged


@each_codec
@given(cut=pieces, weights=weight_lists, seed=seeds)
def test_streaming_is_the_definition(codec: Codec, cut: list[tuple[int, str]], weights: list[float], seed: int) -> None:
    sizes, rules = [size for size, _ in cut], [rule for _, rule in cut]
    spec = spec_of(sizes)
    payloads = [codec.encode(delta) for delta in some_deltas(seed, spec, len(weights))]
    deltas = [codec.decode(payload, spec.numel) for payload in payloads]
    running = Accumulator(spec, rules)
    for payload, weight in zip(payloads, weights, strict=True):
        assert running.fold_encoded(payload, codec, weight).finite
    wanted = in_one_go(deltas, weights, spec, rules)
    # Only the norms differ (float32 sums over a block instead of float64), so a piece may differ by a common factor.
    np.testing.assert_allclose(running.merged(), wanted, rtol=2e-6, atol=0)
    assert running.num_folded == sum(weight > 0 for weight in weights)
    assert running.total_weight == pytest.approx(sum(weights))


@each_optimizer
@given(cut=pieces, seed=seeds, rounds=st.integers(1, 3), data=st.data())
def test_outer_steps_are_merge_and_readable_update(optimizer, cut, seed, rounds, data) -> None:  # type: ignore[no-untyped-def]
    sizes, rules = [size for size, _ in cut], [rule for _, rule in cut]
    spec, lr, momentum = spec_of(sizes), 0.4, 0.9
    readable = OUTER_OPTIMIZERS[optimizer]
    theta = np.random.default_rng(seed + 1).standard_normal(spec.numel).astype(np.float32)
    wanted, state, wanted_state = theta.copy(), readable.init(theta), readable.init(theta)
    running = Accumulator(spec, rules)
    for round_ in range(rounds):
        weights = data.draw(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=4))
        running.reset()
        for delta, weight in zip(some_deltas(seed + round_, spec, len(weights)), weights, strict=True):
            running.fold(delta, weight)
        merged = running.merged()
        stats = running.outer_step(theta, state, optimizer, lr, momentum)
        step, _ = readable.update(merged, wanted_state, np.zeros_like(theta), lr, momentum)
        wanted, wanted_state = readable.update(merged, wanted_state, wanted, lr, momentum)
        np.testing.assert_array_equal(theta, wanted)
        for array, wanted_array in zip(state, wanted_state, strict=True):
            np.testing.assert_array_equal(array, wanted_array)
        assert stats.finite and stats.degenerate == ()
        assert stats.zero == (not merged.any())
        assert stats.theta_norm == pytest.approx(np.linalg.norm(theta.astype(np.float64)), rel=1e-6)
        assert stats.update_norm == pytest.approx(np.linalg.norm(step.astype(np.float64)), rel=1e-6)
        for piece, norm in zip(spec.pieces, stats.merged_norm, strict=True):
            part = merged[piece.offset : piece.offset + piece.numel].astype(np.float64)
            assert norm == pytest.approx(np.linalg.norm(part), rel=2e-6)


@given(cut=pieces, seed=seeds, weight=st.floats(1e-3, 1e9))
def test_one_learner_with_lr_one_and_no_momentum_moves_theta_to_its_own(cut, seed, weight) -> None:  # type: ignore[no-untyped-def]
    spec = spec_of([size for size, _ in cut])
    rng = np.random.default_rng(seed)
    # Multiples of 2^-12 below 1: every difference is exact, so the arithmetic has no excuse.
    base, local = (rng.integers(-4096, 4096, spec.numel).astype(np.float32) / 4096 for _ in range(2))
    for optimizer in OUTER_OPTIMIZERS.values():
        running = Accumulator(spec, [rule for _, rule in cut])
        running.fold(base - local, weight)
        theta = base.copy()
        running.outer_step(theta, optimizer.init(theta), optimizer.name, lr=1.0, momentum=0.0)
        np.testing.assert_array_equal(theta, local)


@each_codec
@given(cut=pieces, seed=seeds)
def test_an_inspection_in_hand_changes_nothing(codec: Codec, cut: list[tuple[int, str]], seed: int) -> None:
    spec = spec_of([size for size, _ in cut])
    with_it, without = (Accumulator(spec, [rule for _, rule in cut]) for _ in range(2))
    for delta in some_deltas(seed, spec, 3):
        payload = codec.encode(delta)
        seen = with_it.fold_encoded(payload.tobytes(), codec, 2.0, inspect(payload, codec, spec))
        np.testing.assert_array_equal(seen.norm, without.fold_encoded(payload, codec, 2.0).norm)
    np.testing.assert_array_equal(with_it.merged(), without.merged())


@given(cut=pieces, seed=seeds, weights=weight_lists)
def test_reset_leaves_no_trace(cut: list[tuple[int, str]], seed: int, weights: list[float]) -> None:
    spec, rules = spec_of([size for size, _ in cut]), [rule for _, rule in cut]
    used, fresh = Accumulator(spec, rules), Accumulator(spec, rules)
    for delta in some_deltas(seed + 1, spec, 3):
        used.fold(delta, 7.0)
    used.reset()
    assert used.num_folded == 0 and used.total_weight == 0 and not used.merged().any()
    for delta, weight in zip(some_deltas(seed, spec, len(weights)), weights, strict=True):
        used.fold(delta, weight)
        fresh.fold(delta, weight)
    np.testing.assert_array_equal(used.merged(), fresh.merged())


@each_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("first", [True, False])
def test_a_poisoned_answer_is_left_out(codec: Codec, bad: float, first: bool) -> None:
    running = Accumulator(spec_of([3, 2]), ["rda", "mean"])
    good, poisoned = np.float32([1, 2, 3, 4, 5]), np.float32([1, 2, 3, 4, bad])
    order = [poisoned, good] if first else [good, poisoned]
    finite = [running.fold_encoded(codec.encode(delta), codec, 1.0).finite for delta in order]
    assert finite == ([False, True] if first else [True, False])
    assert running.num_folded == 1
    np.testing.assert_array_equal(running.merged(), codec.decode(codec.encode(good), 5))


def test_a_merge_that_overflows_does_not_touch_theta() -> None:
    running = Accumulator(spec_of([2]), ["mean"])
    for _ in range(2):
        assert running.fold(np.float32([3e38, 0]), 1.0).finite
    theta = np.ones(2, np.float32)
    state = OUTER_OPTIMIZERS["nesterov"].init(theta)
    stats = running.outer_step(theta, state, "nesterov", 0.4, 0.9)
    assert not stats.finite and not stats.zero
    assert (theta == 1).all() and (state[0] == 0).all()


def test_a_theta_that_overflows_is_not_finite() -> None:
    running = Accumulator(spec_of([2]), ["mean"])
    running.fold(np.float32([-3e38, 0]), 1.0)
    theta = np.float32([3e38, 1])
    assert not running.outer_step(theta, (), "sgd", 1.0, 0.0).finite


def test_values_whose_squares_leave_float32_are_still_finite_and_exact() -> None:
    for scale in (1e-30, 1e25):
        running = Accumulator(spec_of([2000]), ["rda"])
        for sign in (1, -1):
            delta = np.full(2000, scale, np.float32)
            delta[:1000] *= sign
            running.fold(delta, 1.0)
        theta = np.zeros(2000, np.float32)
        stats = running.outer_step(theta, (), "sgd", 1.0, 0.0)
        norm = float(np.linalg.norm(delta.astype(np.float64)))
        assert stats.finite and stats.merged_norm[0] == pytest.approx(norm, rel=1e-6)
        assert stats.theta_norm == pytest.approx(norm, rel=1e-6)


def test_opposite_scalars_take_the_plain_mean() -> None:
    running = Accumulator(spec_of([1, 1, 3]), ["rda", "rda", "rda"])
    running.fold(np.float32([3, 5, 1, 2, 3]), 1.0)
    running.fold(np.float32([-7, 5, -1, -2, -3]), 1.0)
    np.testing.assert_allclose(running.merged(), [-2, 5, 0, 0, 0], rtol=1e-6)
    theta = np.zeros(5, np.float32)
    stats = running.outer_step(theta, (), "sgd", 1.0, 0.0)
    np.testing.assert_allclose(theta, [2, -5, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(stats.merged_norm, [2, 5, 0], rtol=1e-6)
    assert stats.degenerate == ()


def test_a_large_piece_that_cancels_is_zero_and_named() -> None:
    sizes = [accumulate.KEEP_PLAIN_NUMEL + 1, accumulate.KEEP_PLAIN_NUMEL, 1]
    spec = spec_of(sizes)
    running = Accumulator(spec, ["rda", "rda", "mean"])
    delta = np.random.default_rng(0).standard_normal(spec.numel).astype(np.float32)
    running.fold(delta, 1.0)
    running.fold(-3 * delta, 1.0)
    merged = running.merged()
    assert running.degenerate == ("t0",)
    assert not merged[: sizes[0]].any()
    np.testing.assert_allclose(merged[sizes[0] :], -delta[sizes[0] :], rtol=1e-6)
    theta = np.zeros(spec.numel, np.float32)
    stats = running.outer_step(theta, (), "sgd", 1.0, 0.0)
    assert stats.degenerate == ("t0",) and stats.merged_norm[0] == 0
    np.testing.assert_array_equal(theta, -merged)
    running.reset()
    assert running.degenerate == ()


def test_a_large_piece_of_zeros_is_no_cancellation() -> None:
    spec = spec_of([accumulate.KEEP_PLAIN_NUMEL + 1])
    running = Accumulator(spec, ["rda"])
    for _ in range(2):
        running.fold(np.zeros(spec.numel, np.float32), 1.0)
    stats = running.outer_step(np.ones(spec.numel, np.float32), (), "sgd", 1.0, 0.0)
    assert stats.zero and stats.finite and stats.degenerate == () and stats.update_norm == 0


def test_memory_does_not_grow_with_the_number_of_learners() -> None:
    running = Accumulator(spec_of([500, 1]), ["rda", "mean"])

    def held(value: object) -> int:
        """Bytes of all arrays in it, however deep they lie."""
        if isinstance(value, np.ndarray):
            return value.nbytes
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return sum(map(held, inside))

    before = held(vars(running))
    for seed in range(50):
        running.fold(some_deltas(seed, running.spec, 1)[0], 1.0)
    assert held(vars(running)) == before > 0


@each_codec
def test_refuses_a_payload_of_the_wrong_length(codec: Codec) -> None:
    running = Accumulator(spec_of([3]), ["rda"])
    with pytest.raises(ProtocolError, match="3 values"):
        running.fold_encoded(codec.encode(np.ones(200, np.float32)), codec, 1.0)
    assert running.num_folded == 0


@pytest.mark.parametrize("tiny", [1e-40, 1e-30, 1e-15])
def test_a_first_gradient_next_to_nothing_does_not_spoil_the_others(tiny: float) -> None:
    rng = np.random.default_rng(0)
    deltas = [np.float32(tiny) * rng.normal(size=50).astype(np.float32), *rng.normal(size=(3, 50)).astype(np.float32)]
    running = Accumulator(
        FragmentSpec(index=0, pieces=(Piece(name="w", start=0, stop=50, offset=0),), numel=50), ["rda"]
    )
    for delta in deltas:
        running.fold(delta, 2.0)
    np.testing.assert_allclose(running.merged(), MERGE_RULES["rda"](deltas, [2.0] * 4), rtol=2e-5, atol=1e-6)


def test_an_optimizer_state_of_another_size_is_never_written_to() -> None:
    running = Accumulator(
        FragmentSpec(index=0, pieces=(Piece(name="w", start=0, stop=4, offset=0),), numel=4), ["mean"]
    )
    running.fold(np.ones(4, np.float32), 1.0)
    with pytest.raises(AssertionError):
        running.outer_step(np.zeros(4, np.float32), (np.zeros(2, np.float32),), "nesterov", 0.4, 0.9)
