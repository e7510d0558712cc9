"""How the outer gradients of several learners become one (paper, radial-directional averaging).

These are the definitions, to be read: each takes one tensor's outer gradients and their weights. What runs
in the syncer is the streaming form of the same in :mod:`gruppetto.numerics.accumulate`, measured against
these.

With φ(x) = x/‖x‖ and φ(0) = 0::

    mean({Δ_m, w_m}) = Σ w_m Δ_m / Σ w_m
    rda({Δ_m, w_m})  = (Σ w_m ‖Δ_m‖ / Σ w_m) · φ(Σ w_m φ(Δ_m))

A plain mean of M orthogonal gradients is √M shorter than any of them, so every M would want its own outer
learning rate; ``rda`` keeps the length.

Three robust rules stand beside them, for runs among learners that are not all trusted. One bad learner of five moves
``trimmed``, ``median`` and ``clipped-rda`` by a bounded amount, whatever it sends; it moves the two above anywhere.

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
from statistics import median_low
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import SettingError
from gruppetto.numerics.kernels import Float32

__all__ = [
    "CLIP_RADIUS_AT",
    "DEGENERATE_BELOW",
    "GATHERING",
    "MERGE_RULES",
    "TRIM_SHARE",
    "MergeRule",
    "clipped_radius",
    "clipped_rda",
    "mean",
    "median",
    "rda",
    "rule_for",
    "trimmed",
]

MergeRule = Callable[[Sequence[Float32], Sequence[float]], Float32]

DEGENERATE_BELOW = 1e-6
"""Mean directions shorter than this are what float32 rounding left of a cancellation, and point nowhere.

Measured on vectors that cancel exactly (two, or three learners with w1 + w2 = w3; 1 to 100 elements): with a threshold
of 1e-9 or less between 9 % and all of them pass it and would have noise blown up to full length; at 1e-7 none does.
M honest learners come nowhere near: orthogonal gradients still have a mean direction of length 1/√M.
"""

FAR_APART = 1e12
"""Between norms further apart than this, float32 has no room for both in the unit of the smaller."""

TRIM_SHARE = 0.2
"""Of the learners, at either end: one of five."""

CLIP_RADIUS_AT = 2.0
"""Times the lower median of the norms."""

STRIDE = 1 << 14

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
    radius = sum(weight * norm for (_, weight), norm in zip(used, norms, strict=True)) / sum(w for _, w in used)
    merged = _along_the_mean_direction(used, norms, radius)
    return mean(deltas, weights) if merged is None else merged


def clipped_rda(deltas: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """``rda`` with a length that no minority can stretch: norms count up to twice their lower median.

    Norms of zero are left out of the median: a tensor that most learners had no use for is not therefore still. Where
    the directions cancel the result is zero, since a plain mean would be as long as the longest of them.
    """
    used = _used(deltas, weights)
    if len(used) < 2:
        return mean(deltas, weights)
    norms = [_norm(delta) for delta, _ in used]
    merged = _along_the_mean_direction(used, norms, clipped_radius(norms, [weight for _, weight in used]))
    return np.zeros_like(deltas[0]) if merged is None else merged


def clipped_radius(norms: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean of norms, each clipped at twice the lower median of those that are not zero.

    >>> clipped_radius([1.0, 1.0, 1000.0], [1.0, 1.0, 2.0])
    1.5
    """
    most = CLIP_RADIUS_AT * median_low([norm for norm in norms if norm > 0] or [0.0])
    return sum(weight * min(norm, most) for norm, weight in zip(norms, weights, strict=True)) / sum(weights)


def trimmed(deltas: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """The coordinate-wise trimmed mean: without the smallest and the largest values, the others averaged by weight.

    Of M learners :data:`TRIM_SHARE` · M, rounded down, are left out at either end, at least one if there are three.
    They are counted, not weighed, so that nobody's token counts keep it in. Of equal values the lighter goes first.

    >>> trimmed([np.float32([v]) for v in (1, 2, 3, 4, 1000)], [1.0, 1.0, 1.0, 2.0, 5.0])
    array([3.25], dtype=float32)
    """
    used = _used(deltas, weights)
    return mean(deltas, weights) if len(used) < 3 else _by_coordinate(used, _trimmed_mean)


def median(deltas: Sequence[Float32], weights: Sequence[float]) -> Float32:
    """The plain coordinate-wise median, the mean of the two middle ones if they are even in number.

    Weights decide only who counts, those above zero: by weight, one heavy learner would decide alone.

    >>> median([np.float32([v]) for v in (1, 2, 1000)], [1.0, 1.0, 5.0])
    array([2.], dtype=float32)
    """
    used = _used(deltas, weights)
    return mean(deltas, weights) if len(used) < 2 else _by_coordinate(used, _middle)


def _along_the_mean_direction(
    used: Sequence[tuple[Float32, float]], norms: Sequence[float], radius: float
) -> Float32 | None:
    """The mean direction, ``radius`` long; None where the directions cancel."""
    total = sum(weight for _, weight in used)
    unit = _unit(norms)
    pointing = [n > NO_DIRECTION_BELOW * unit for n in norms]
    direction = _sum([(d, w * unit / n if p else 0.0) for (d, w), n, p in zip(used, norms, pointing, strict=True)])
    length = _norm(direction)
    if length <= DEGENERATE_BELOW * unit * total:
        return None
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


def _by_coordinate(
    used: Sequence[tuple[Float32, float]], rule: Callable[[Float32, NDArray[np.float64]], Float32]
) -> Float32:
    """Apply ``rule``: values [M, n], weights [M] → [n], in strides that stay in the cache."""
    merged = np.empty_like(used[0][0])
    flat, weights = merged.reshape(-1), np.array([weight for _, weight in used])
    columns = [delta.reshape(-1) for delta, _ in used]
    for lo in range(0, flat.size, STRIDE):
        flat[lo : lo + STRIDE] = rule(np.stack([column[lo : lo + STRIDE] for column in columns]), weights)
    return merged


def _trimmed_mean(values: Float32, weights: NDArray[np.float64]) -> Float32:
    count = len(weights)
    cut = max(1, int(TRIM_SHARE * count))
    by_weight = np.broadcast_to(weights[:, None], values.shape)
    kept = np.lexsort((by_weight, values), axis=0)[cut : count - cut]
    middle, w = np.take_along_axis(values, kept, axis=0).astype(np.float64), weights[kept]
    merged: Float32 = ((w * middle).sum(axis=0) / w.sum(axis=0)).astype(np.float32)
    return merged


def _middle(values: Float32, weights: NDArray[np.float64]) -> Float32:
    ordered, half = np.sort(values, axis=0), len(values) // 2
    if len(values) % 2:
        return cast(Float32, ordered[half])
    low, high = np.float32(0.5) * ordered[half - 1], np.float32(0.5) * ordered[half]  # their sum may overflow
    return cast(Float32, low + high)


MERGE_RULES: dict[str, MergeRule] = {
    "mean": mean,
    "rda": rda,
    "trimmed": trimmed,
    "median": median,
    "clipped-rda": clipped_rda,
}

GATHERING = frozenset({"trimmed", "median"})
"""Rules that need all contributions at once. The others are folded one by one, in memory that does not grow with M."""

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
