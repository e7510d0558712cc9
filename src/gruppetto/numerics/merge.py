"""How the outer gradients of several learners become one (paper, radial-directional averaging).

These are the definitions, to be read: each takes one tensor's outer gradients and their weights. What runs
in the syncer is the streaming form of the same in :mod:`gruppetto.numerics.accumulate`, measured against
these.

With φ(x) = x/‖x‖ and φ(0) = 0::

    mean({Δ_m, w_m}) = Σ w_m Δ_m / Σ w_m
    rda({Δ_m, w_m})  = (Σ w_m ‖Δ_m‖ / Σ w_m) · φ(Σ w_m φ(Δ_m))

A plain mean of M orthogonal gradients is √M shorter than any of them, so every M would want its own outer
learning rate; ``rda`` keeps the length.

>>> import numpy as np
>>> across, up = np.float32([3, 0]), np.float32([0, 3])
>>> mean([across, up], [1.0, 1.0])
array([1.5, 1.5], dtype=float32)
>>> rda([across, up], [1.0, 1.0]).round(4)
array([2.1213, 2.1213], dtype=float32)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from gruppetto.errors import SettingError
from gruppetto.numerics.kernels import Float32

__all__ = ["DEGENERATE_BELOW", "MERGE_RULES", "MergeRule", "mean", "rda", "rule_for"]

MergeRule = Callable[[Sequence[Float32], Sequence[float]], Float32]

DEGENERATE_BELOW = 1e-6
"""Mean directions shorter than this are what float32 rounding left of a cancellation, and point nowhere.

Measured on vectors that cancel exactly (two, or three learners with w1 + w2 = w3; 1 to 100 elements): with a threshold
of 1e-9 or less between 9 % and all of them pass it and would have noise blown up to full length; at 1e-7 none does.
M honest learners come nowhere near: orthogonal gradients still have a mean direction of length 1/√M.
"""

FAR_APART = 1e12
"""Between norms further apart than this, float32 has no room for both in the unit of the smaller."""

NO_DIRECTION_BELOW = 1e-30
"""A gradient shorter than this share of the longest has no direction that float32 could be scaled up to."""


def mean(deltas: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """Σ w Δ / Σ w; all zeros if no weight is positive. Any shape, the same for all; summed in the order given."""
    used = _used(deltas, weights)
    if len(used) < 2:
        return used[0][0].copy() if used else np.zeros_like(deltas[0])
    return np.float32(1 / sum(weight for _, weight in used)) * _sum(used)


def rda(deltas: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """Average length times average direction; all zeros if no weight is positive.

    One learner: its gradient, bit for bit. Where the directions cancel (mean direction below
    :data:`DEGENERATE_BELOW`) there is none to follow, and the plain weighted mean is taken.
    """
    used = _used(deltas, weights)
    if len(used) < 2:
        return mean(deltas, weights)
    norms = [_norm(delta) for delta, _ in used]
    total = sum(weight for _, weight in used)
    unit = _unit(norms)
    pointing = [n > NO_DIRECTION_BELOW * unit for n in norms]
    direction = _sum([(d, w * unit / n if p else 0.0) for (d, w), n, p in zip(used, norms, pointing, strict=True)])
    length = _norm(direction)
    if length <= DEGENERATE_BELOW * unit * total:
        return mean(deltas, weights)
    radius = sum(weight * norm for (_, weight), norm in zip(used, norms, strict=True)) / total
    return np.float32(radius / length) * direction


def _unit(norms: Sequence[float]) -> float:
    """What directions are measured in: the first norm that is not next to nothing beside a later one.

    So the sum stays in the range of the gradients themselves.
    """
    unit = 0.0
    for norm in norms:
        if unit == 0.0 or norm > FAR_APART * unit:
            unit = norm
    return unit


MERGE_RULES: dict[str, MergeRule] = {"mean": mean, "rda": rda}

_EMBEDDING = re.compile(
    r"(?:^|\.)(?:"
    r"wte|wpe|lm_head|output_layer|"
    r"(?:(?!patch_)\w+_)?emb(?:d|ed|edding|eddings)?(?:_(?:tokens|positions|in|out)(?:_\w+)?)?"
    r")(?:\.weight)?$"
)
# Names that mean the head (or a shared table) only at the top of a model; inside a numbered block they are
# a layer.
_TOP_LEVEL_EMBEDDING = re.compile(r"^(?:[a-z_]+\.)*(?:output|head|unembed|shared)\.weight$")


def rule_for(name: str, shape: tuple[int, ...], overrides: Sequence[tuple[str, str]] = ()) -> str:
    """The merge rule of one tensor: the first override whose regex is found in the name, else the default.

    By default embedding tables (input, positional, and the head, tied or not) take the plain mean and
    everything else, their biases and norms included, takes ``rda`` (paper, merging). Raises
    :class:`SettingError` for an unknown rule or a broken regex, whether or not it would have matched.

    >>> rule_for("model.embed_tokens.weight", (256, 64)), rule_for("model.layers.0.up.weight", (256, 64))
    ('mean', 'rda')
    >>> rule_for("model.embed_tokens.weight", (256, 64), [("embed", "rda")])
    'rda'
    """
    chosen = ""
    for index, (pattern, rule) in enumerate(overrides):
        where = f"merge override {index} ({pattern!r}: {rule!r})"
        if rule not in MERGE_RULES:
            raise SettingError(f"unknown merge rule {rule!r}", where=where, fix=f"use one of {sorted(MERGE_RULES)}")
        try:
            found = re.search(pattern, name)
        except re.error as broken:
            raise SettingError(f"not a regular expression ({broken})", where=where, fix="mend the regex") from None
        if found and not chosen:
            chosen = rule
    if chosen:
        return chosen
    is_table = len(shape) >= 2 and (_EMBEDDING.search(name) or _TOP_LEVEL_EMBEDDING.search(name))
    return "mean" if is_table else "rda"


def _used(deltas: Sequence[Float32], weights: Sequence[float]) -> list[tuple[Float32, float]]:
    """The gradients that count, with weights relative to the first of them."""
    assert len(deltas) == len(weights) > 0
    assert all(math.isfinite(weight) and weight >= 0 for weight in weights)
    used = [(delta, weight) for delta, weight in zip(deltas, weights, strict=True) if weight > 0]
    return [(delta, weight / used[0][1]) for delta, weight in used]


def _sum(scaled: Sequence[tuple[Float32, float]]) -> Float32:
    total = np.zeros_like(scaled[0][0])
    for delta, scale in scaled:
        total += np.float32(scale) * delta
    return total


def _norm(values: Float32) -> float:
    return float(np.sqrt(np.sum(np.square(values, dtype=np.float64))))
