"""Encodings of one and two bits: few values a block, the best ones there are, and nothing that is not finite lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gruppetto.experiments.coarse import COARSE, INNER, OUTER, make_coarse
from gruppetto.numerics.words import GROUP

LEVELS = {"sign": [-1.0, 1.0], "ternary": [-1.0, 0.0, 1.0], "four-levels": [-OUTER, -INNER, INNER, OUTER]}
each = pytest.mark.parametrize("name", COARSE)


def some(seed: int, numel: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(numel) * 10.0 ** rng.uniform(-6, 3)).astype(np.float32)


@each
@given(seed=st.integers(0, 2**32 - 1), numel=st.sampled_from([0, 1, 127, 128, 129, 300]))
def test_every_element_is_a_nearest_of_few_values(name: str, seed: int, numel: int) -> None:
    x = some(seed, numel)
    said = make_coarse(x, name)
    assert said.shape == x.shape and said.dtype == np.float32
    for at in range(0, numel, GROUP):
        block, out = x[at : at + GROUP].astype(np.float64), said[at : at + GROUP].astype(np.float64)
        measure = {"sign": np.abs(block).mean(), "ternary": np.abs(block).max()}
        scale = measure.get(name, np.sqrt(np.square(block).mean()))
        values = scale * np.array(LEVELS[name])
        # Scales are rounded to bfloat16: each value is as near as 2⁻⁸ of one of the few.
        off = np.abs(out[:, None] - values).min(axis=1)
        assert (off <= np.abs(out) * 2.0**-8 + 1e-12).all()
        nearest = np.abs(block[:, None] - values).min(axis=1)
        assert (np.abs(out - block) <= nearest + scale * OUTER * 2.0**-7).all()
        assert len(np.unique(out)) <= len(LEVELS[name])


@given(seed=st.integers(0, 2**32 - 1))
def test_no_other_scale_of_signs_is_nearer(seed: int) -> None:
    x = some(seed, GROUP)
    said = make_coarse(x, "sign")
    errors = [float(np.square(x - said * share).sum()) for share in (0.98, 1.0, 1.02)]
    assert errors[1] < errors[0] and errors[1] < errors[2]


def test_four_levels_leave_what_is_known_of_a_normal() -> None:
    """Max (1960): a mean square error of 0.1175 with four levels and of 0.3634 with two."""
    x = np.random.default_rng(0).standard_normal(GROUP * 2000).astype(np.float32)
    for name, left in (("four-levels", 0.1175), ("sign", 0.3634)):
        assert float(np.square(x - make_coarse(x, name)).mean()) == pytest.approx(left, rel=0.02)


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_spoils_its_block_and_no_other(name: str, bad: float) -> None:
    x = some(1, 300)
    x[130] = bad
    said = make_coarse(x, name)
    same_block = np.arange(300) // GROUP == 1
    assert np.isnan(said[same_block]).all() and np.isfinite(said[~same_block]).all()
    assert not make_coarse(np.zeros(200, np.float32), name).any()
