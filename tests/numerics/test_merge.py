from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from gruppetto.errors import SettingError
from gruppetto.numerics.merge import MERGE_RULES, mean, rda, rule_for

Vector = NDArray[np.float32]
ULP = 2.0**-23

values = st.floats(-1e3, 1e3, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
weights = st.floats(1e-3, 1e6)
positive = st.floats(2.0**-20, 2.0**20, width=32)


@st.composite
def contributions(draw: st.DrawFn, at_least: int = 1) -> tuple[list[Vector], list[float]]:
    numel, count = draw(st.integers(1, 40)), draw(st.integers(at_least, 6))
    deltas = [draw(arrays(np.float32, numel, elements=values)) for _ in range(count)]
    return deltas, [draw(weights) for _ in range(count)]


def norm(x: NDArray[np.floating]) -> float:
    return float(np.linalg.norm(x.astype(np.float64)))


def textbook_rda(deltas: list[Vector], w: list[float]) -> tuple[NDArray[np.float64], float]:
    """Section 4 in float64, and how long the mean direction is (its inverse is the condition number)."""
    directions = [d.astype(np.float64) / (norm(d) or 1.0) for d in deltas]
    direction = sum((x * d for d, x in zip(directions, w, strict=True)), np.zeros(deltas[0].shape)) / sum(w)
    radius = sum(x * norm(d) for d, x in zip(deltas, w, strict=True)) / sum(w)
    length = norm(direction)
    return radius * direction / (length or 1.0), length


@given(contributions())
def test_mean_is_the_weighted_mean(given_: tuple[list[Vector], list[float]]) -> None:
    deltas, w = given_
    exact = np.average(np.stack(deltas).astype(np.float64), axis=0, weights=w)
    scale = np.average(np.abs(np.stack(deltas)).astype(np.float64), axis=0, weights=w)
    assert (np.abs(mean(deltas, w) - exact) <= (len(deltas) + 2) * ULP * scale + 1e-30).all()


@given(contributions(at_least=2))
def test_rda_is_what_the_paper_says(given_: tuple[list[Vector], list[float]]) -> None:
    deltas, w = given_
    exact, length = textbook_rda(deltas, w)
    assume(length > 1e-3)
    assert norm(rda(deltas, w) - exact) <= (len(deltas) + 3) * ULP * norm(exact) / length


@pytest.mark.parametrize("rule", MERGE_RULES.values(), ids=MERGE_RULES)
@given(given_=contributions(), data=st.data())
def test_order_does_not_matter(rule, given_, data) -> None:  # type: ignore[no-untyped-def]
    deltas, w = given_
    _, length = textbook_rda(deltas, w)
    assume(length > 1e-2)
    order = data.draw(st.permutations(range(len(w))))
    other = rule([deltas[i] for i in order], [w[i] for i in order])
    largest = max(norm(d) for d in deltas)
    assert norm(rule(deltas, w) - other) <= 20 * ULP * largest / length


@pytest.mark.parametrize("rule", MERGE_RULES.values(), ids=MERGE_RULES)
@given(given_=contributions(), exponent=st.integers(-40, 40))
def test_a_power_of_two_goes_straight_through(rule, given_, exponent) -> None:  # type: ignore[no-untyped-def]
    deltas, w = given_
    factor = np.float32(2.0**exponent)
    assert np.array_equal(rule([factor * d for d in deltas], w), factor * rule(deltas, w))


@pytest.mark.parametrize("rule", MERGE_RULES.values(), ids=MERGE_RULES)
@given(given_=contributions(), exponent=st.integers(-20, 20))
def test_only_the_ratio_of_weights_matters(rule, given_, exponent) -> None:  # type: ignore[no-untyped-def]
    deltas, w = given_
    assert np.array_equal(rule(deltas, [2.0**exponent * x for x in w]), rule(deltas, w))


@pytest.mark.parametrize("rule", MERGE_RULES.values(), ids=MERGE_RULES)
@given(delta=arrays(np.float32, (3, 5), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)), w=weights)
def test_one_learner_passes_bit_for_bit(rule, delta, w) -> None:  # type: ignore[no-untyped-def]
    merged = rule([delta], [w])
    assert np.array_equal(merged, delta) and merged is not delta
    assert np.array_equal(rule([delta + 1, delta, delta * 0], [0.0, w, 0.0]), delta)


@pytest.mark.parametrize("rule", MERGE_RULES.values(), ids=MERGE_RULES)
def test_nothing_of_weight_or_nothing_but_zeros_gives_zeros(rule) -> None:  # type: ignore[no-untyped-def]
    one, none = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
    assert np.array_equal(rule([one, one], [0.0, 0.0]), none)
    assert np.array_equal(rule([none, none, none], [1.0, 2.0, 3.0]), none)


@given(st.integers(1, 16), st.floats(0.1, 10))
def test_orthogonal_gradients_keep_their_length_under_rda_and_lose_it_under_the_mean(m: int, length: float) -> None:
    deltas = list(np.eye(m, dtype=np.float32) * np.float32(length))
    assert norm(rda(deltas, [1.0] * m)) == pytest.approx(length, rel=1e-6)
    assert norm(mean(deltas, [1.0] * m)) == pytest.approx(length / math.sqrt(m), rel=1e-6)


def test_a_zero_gradient_shortens_but_does_not_turn() -> None:
    delta = np.float32([3.0, 4.0])
    merged = rda([delta, 0 * delta], [1.0, 3.0])
    np.testing.assert_allclose(merged, delta / 4, rtol=1e-6)
    np.testing.assert_array_equal(rda([0 * delta, delta], [3.0, 1.0]), merged)


def test_opposite_gradients_fall_back_to_the_mean() -> None:
    delta = np.float32([1.0, -2.0, 0.5])
    assert np.array_equal(rda([delta, -delta], [1.0, 1.0]), np.zeros(3, np.float32))
    merged = rda([delta, -3 * delta], [2.0, 2.0])
    np.testing.assert_array_equal(merged, mean([delta, -3 * delta], [2.0, 2.0]))
    np.testing.assert_allclose(merged, -delta, rtol=1e-6)


@given(x=positive, y=positive, z=positive, w=weights)
def test_cancelling_scalars_fall_back_however_they_round(x: float, y: float, z: float, w: float) -> None:
    # The threshold must be above what float32 leaves of a cancellation, or rounding noise would be blown up to full
    # length with a random sign.
    deltas, three = [np.float32([v]) for v in (x, y, -z)], [w, 2 * w, 3 * w]
    assert np.array_equal(rda(deltas, three), mean(deltas, three))


EMBEDDINGS = [
    *("transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight", "model.embed_tokens.weight"),
    *("gpt_neox.embed_in.weight", "embed_out.weight", "tok_embeddings.weight", "output.weight", "tok_emb.weight"),
    *("model.decoder.embed_positions.weight", "bert.embeddings.word_embeddings.weight", "pos_emb", "pos_embed"),
    *("bert.embeddings.position_embeddings.weight", "bert.embeddings.token_type_embeddings.weight", "shared.weight"),
    *("text_model.embeddings.token_embedding.weight", "head.weight", "module._orig_mod.lm_head.weight"),
    *("embedding.weight", "model.embed_tokens_per_layer.weight", "language_model.output_layer.weight"),
]
OTHERS = [
    *("model.layers.0.self_attn.q_proj.weight", "transformer.h.11.mlp.c_fc.weight", "layers.3.output.weight"),
    *("encoder.layer.0.output.dense.weight", "patch_embed.proj.weight", "time_embed.0.weight", "member.weight"),
    *(
        "embeddings.patch_embedding.weight",
        "layers.1.attention.head.weight",
        "remember_out.weight",
        "model.norm.weight",
    ),
]


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_take_the_mean(name: str) -> None:
    assert rule_for(name, (64, 16)) == "mean"


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_takes_rda(name: str) -> None:
    assert rule_for(name, (64, 16)) == "rda"


def test_a_vector_is_no_table() -> None:
    assert rule_for("bert.embeddings.word_embeddings.weight", (64,)) == "rda"
    assert rule_for("lm_head.bias", (64,)) == "rda"


def test_the_first_override_that_matches_decides() -> None:
    overrides = [(r"^h\.0\.", "mean"), (r"^h\.", "rda"), ("wte", "rda")]
    assert rule_for("h.0.w", (2, 2), overrides) == "mean"
    assert rule_for("h.1.w", (2, 2), overrides) == "rda"
    assert rule_for("wte.weight", (2, 2), overrides) == "rda"
    assert rule_for("wpe.weight", (2, 2), overrides) == "mean"


def test_refuses_a_broken_override_even_behind_one_that_matches() -> None:
    with pytest.raises(SettingError, match=r"merge override 1 .*unknown merge rule 'average'; use one of"):
        rule_for("w", (2,), [("w", "rda"), ("x", "average")])
    with pytest.raises(SettingError, match=r"merge override 0 .*not a regular expression .*mend the regex"):
        rule_for("w", (2,), [("(", "rda")])
