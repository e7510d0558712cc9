"""The merge as it runs: one learner's outer gradient folded in at a time, as they arrive.

Memory does not grow with the number of learners, and when the last answer has come only one fold and one
final pass, fused with the outer optimizer, are left to do. Per piece the accumulator keeps::

    total  = Σ w_m · u · φ(Δ_m)   (rda; u is the first norm that was not zero)   or   Σ w_m · Δ_m   (mean)
    radius = Σ w_m · ‖Δ_m‖,   W = Σ w_m,   ‖total‖²

with weights relative to the first, so that ``total`` stays in the range of the gradients themselves. The
merge is then one number a piece times ``total``: 1/W for the mean, (radius / W) / ‖total‖ for rda.

``clipped-rda`` keeps (w_m, ‖Δ_m‖) of every contribution beside that and decides on the length at the end.
The pieces of ``trimmed`` and ``median`` are *gathered*: a copy of each contribution until the outer step,
float32, so M times the size of those pieces, for the fragments of one round. :data:`MOST_GATHERED_BYTES`
bounds what a run may ask for.

A contribution that is too long somewhere is folded with *caps* (section 6): a piece with a cap counts as if
it were that long, with its own direction, in the same pass.

Two departures from :mod:`gruppetto.numerics.merge`, the definition:

* Where directions cancel, the definition falls back to the plain mean. That needs a second sum, which is
  kept for pieces of up to :data:`KEEP_PLAIN_NUMEL` elements only: there it is cheap, and cancelling is
  common (two learners disagree about the sign of a scalar). In a larger piece it takes exactly opposite
  vectors; its update is then zero and its name is listed in :attr:`Accumulator.degenerate`.
* ‖total‖ comes from float32 sums over short blocks (relative error 3e-7 at worst) instead of float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppetto.numerics import kernels
from gruppetto.numerics.codec import CODECS, Buffer, Codec
from gruppetto.numerics.fragments import FragmentSpec
from gruppetto.numerics.inspection import Inspection, inspect
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.merge import (
    DEGENERATE_BELOW,
    FAR_APART,
    GATHERING,
    MERGE_RULES,
    NO_DIRECTION_BELOW,
    clipped_radius,
)
from gruppetto.numerics.outer import OUTER_OPTIMIZERS, OuterState

__all__ = ["GATHERING", "KEEP_PLAIN_NUMEL", "MOST_GATHERED_BYTES", "Accumulator", "FoldStats", "StepStats"]

KEEP_PLAIN_NUMEL = 65_536
"""Of a piece whose plain sum is kept beside the other: where directions cancel."""

MOST_GATHERED_BYTES = 8 * 2**30
"""Of one fragment, from as many learners as there are data slots. A run that could need more is refused."""

Caps = Sequence[tuple[int, float]]
"""(piece, the norm that it counts with at most)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldStats:
    """What was offered: the norm of each piece, float64 [pieces]; if not ``finite``, nothing was folded."""

    norm: NDArray[np.float64]
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepStats:
    """One outer step: the norms of what was taken off Θ, of Θ′, and of the merged gradient piece by piece.

    If not ``finite``, Θ′ must not be published. ``zero``: the merged gradient is zero everywhere, so that
    nothing was learnt this round. ``degenerate`` names large pieces whose directions cancelled.
    """

    update_norm: float
    theta_norm: float
    merged_norm: NDArray[np.float64]
    finite: bool
    zero: bool
    degenerate: tuple[str, ...]


class Accumulator:
    """The running merge of one fragment: fold, fold, …, outer step, reset.

    ``rules`` names each piece's merge rule. Not for use by two threads at once, but kernels give the
    interpreter lock back, so that several accumulators work side by side.

    >>> from gruppetto.numerics.fragments import FragmentSpec, Piece
    >>> pieces = (Piece(name="w", start=0, stop=2, offset=0),)
    >>> running = Accumulator(FragmentSpec(index=0, pieces=pieces, numel=2), ["mean"])
    >>> for delta in ([1.0, 3.0], [3.0, 5.0]):
    ...     _ = running.fold(np.float32(delta), weight=1.0)
    >>> running.merged(), running.num_folded, running.total_weight
    (array([2., 4.], dtype=float32), 2, 2.0)
    """

    def __init__(self, spec: FragmentSpec, rules: Sequence[str], room: Float32 | None = None) -> None:
        """``room`` [numel] for the running total, whatever it holds: the first fold overwrites it."""
        assert len(rules) == len(spec.pieces)
        assert set(rules) <= set(MERGE_RULES)
        self.spec = spec
        self._rules = tuple(rules)
        self._starts, self._stops = spec.bounds()
        self._is_rda = np.array([rule in ("rda", "clipped-rda") for rule in rules], bool)
        self._is_clipped = np.array([rule == "clipped-rda" for rule in rules], bool)
        self._gathers = tuple(p for p, rule in enumerate(rules) if rule in GATHERING)
        self._total = np.zeros(spec.numel, np.float32) if room is None else room
        assert self._total.shape == (spec.numel,)
        numel = self._stops - self._starts
        self._is_large = numel > KEEP_PLAIN_NUMEL
        self._keeps_plain = self._is_rda & ~self._is_clipped & ~self._is_large
        ends = np.cumsum(np.where(self._keeps_plain, numel, 0))
        self._plain = np.zeros(int(ends[-1]) if len(ends) else 0, np.float32)
        self._plain_starts = np.where(self._keeps_plain, ends - numel, -1)
        self._norm_sq = np.zeros(len(rules))
        self._unit = np.zeros(len(rules))
        self._radius = np.zeros(len(rules))
        self.reset()

    def reset(self) -> None:
        """Forget everything but keep the buffers: memory touched for the first time is slow. What was gathered goes."""
        self.num_folded = 0
        self.degenerate: tuple[str, ...] = ()
        self._first_weight = 0.0
        self._relative_weight = 0.0
        self._spent = False
        self._weights: list[float] = []
        self._norms: list[NDArray[np.float64]] = []
        self._gathered: dict[int, list[Float32]] = {p: [] for p in self._gathers}

    @property
    def room(self) -> Float32:
        """What the running total lies in, to be used again when this merge is over."""
        return self._total

    @property
    def total_weight(self) -> float:
        """The sum of the weights folded."""
        return self._first_weight * self._relative_weight

    def fold(self, delta: Float32, weight: float, inspection: Inspection | None = None, caps: Caps = ()) -> FoldStats:
        """Fold in one flat outer gradient [numel]."""
        assert delta.dtype == np.float32
        return self.fold_encoded(np.ascontiguousarray(delta).view(np.uint8), CODECS["fp32"], weight, inspection, caps)

    def fold_encoded(
        self, payload: Buffer, codec: Codec, weight: float, inspection: Inspection | None = None, caps: Caps = ()
    ) -> FoldStats:
        """Fold in one payload, decoding as it goes; one pass if its inspection is at hand, else two.

        A payload that is not finite is left out, and a weight of zero changes nothing. What is folded stays: every
        other gate comes first. ``caps`` are pairs of a piece and the norm that it counts with. Raises
        :class:`ProtocolError` for a payload of the wrong length.
        """
        assert math.isfinite(weight) and weight >= 0
        assert not self._spent, "reset first"
        words = codec.words(payload, self.spec.numel)
        seen = inspect(payload, codec, self.spec) if inspection is None else inspection
        stats = FoldStats(norm=seen.norm, finite=seen.finite)
        if not stats.finite or weight == 0:
            return stats
        counted, shrunk = stats.norm.copy(), np.ones(len(stats.norm))
        for p, cap in caps:
            if stats.norm[p] > cap:
                counted[p], shrunk[p] = cap, cap / stats.norm[p]
        if self.num_folded == 0:
            self._start(words, counted, shrunk, weight)
        else:
            self._add(words, stats.norm, counted, shrunk, weight / self._first_weight)
        self._remember(words, counted, shrunk, weight)
        self.num_folded += 1
        return stats

    def merged(self) -> Float32:
        """The merged gradient of what has been folded so far, as a new vector [numel]; folding may go on."""
        scales, fall_back = self._scales()
        merged = self._total.copy()
        for p in range(len(scales)):
            piece = slice(self._starts[p], self._stops[p])
            merged[piece] *= scales[p]
            if fall_back[p]:
                merged[piece] = self._plain_of(p) * np.float32(1 / self._relative_weight)
            if p in self._gathers and self.num_folded:
                merged[piece] = self._merge_gathered(p)
        return merged

    def outer_step(self, theta: Float32, state: OuterState, optimizer: str, lr: float, momentum: float) -> StepStats:
        """One outer step on Θ [numel] and the optimizer's state, in place; then only :meth:`reset` is left.

        A merge that overflowed is found before Θ is touched, and then Θ stays as it was.
        """
        assert self.num_folded > 0 and not self._spent
        assert theta.shape == (self.spec.numel,) and theta.dtype == np.float32
        assert theta.flags.writeable and all(part.shape == theta.shape for part in state), "not those of this fragment"
        scales, fall_back = self._scales()
        self._spent = True
        for p in np.flatnonzero(fall_back):
            piece = self._total[self._starts[p] : self._stops[p]]
            piece[:] = self._plain_of(p)
            scales[p] = 1 / self._relative_weight
            self._norm_sq[p] = np.sum(np.square(piece, dtype=np.float64))
        for gathered in self._gathers:
            p = np.intp(gathered)
            piece = self._total[self._starts[p] : self._stops[p]]
            piece[:] = self._merge_gathered(gathered)
            scales[p] = 1.0
            self._norm_sq[p] = np.sum(np.square(piece, dtype=np.float64))
        merged_norm = scales.astype(np.float64) * np.sqrt(self._norm_sq)
        update_sq = theta_sq = math.nan
        if np.isfinite(merged_norm).all():
            step = OUTER_OPTIMIZERS[optimizer].step
            update_sq, theta_sq = step(self._total, self._starts, self._stops, scales, theta, state, lr, momentum)
        return StepStats(
            update_norm=math.sqrt(update_sq),
            theta_norm=math.sqrt(theta_sq),
            merged_norm=merged_norm,
            finite=math.isfinite(theta_sq),
            zero=not merged_norm.any(),
            degenerate=self.degenerate,
        )

    def _start(
        self,
        words: Any,
        norm: NDArray[np.float64],
        shrunk: NDArray[np.float64],
        weight: float,
    ) -> None:
        """The first gradient is kept as it is, but for caps: a round of one learner passes it on bit for bit."""
        kernels.decode(words, 0, self._total)
        for p in np.flatnonzero(shrunk < 1):
            self._total[self._starts[p] : self._stops[p]] *= np.float32(shrunk[p])
        for p in np.flatnonzero(self._keeps_plain):
            self._plain_of(p)[:] = self._total[self._starts[p] : self._stops[p]]
        self._norm_sq[:] = np.square(norm)
        self._unit[:] = self._radius[:] = norm
        self._first_weight, self._relative_weight = weight, 1.0

    def _add(
        self,
        words: Any,
        norm: NDArray[np.float64],
        counted: NDArray[np.float64],
        shrunk: NDArray[np.float64],
        weight: float,
    ) -> None:
        """``norm`` is how long the pieces are, ``counted`` how long they count, ``shrunk`` the one by the other."""
        self._unit = np.where(self._unit > 0, self._unit, counted)
        for p in np.flatnonzero(self._is_rda & (counted > FAR_APART * self._unit)):
            self._measure_anew(p, float(counted[p]))
        pointing = counted > NO_DIRECTION_BELOW * self._unit
        direction = weight * np.divide(self._unit, norm, out=np.zeros_like(norm), where=pointing)
        plain = (weight * shrunk).astype(np.float32)
        scales = np.where(self._is_rda, direction, plain).astype(np.float32)
        scales[list(self._gathers)] = 0.0
        kernels.fold(
            self._total,
            words,
            self._starts,
            self._stops,
            scales,
            self._norm_sq,
            self._plain,
            self._plain_starts,
            plain,
        )
        self._radius += weight * counted
        self._relative_weight += weight

    def _remember(self, words: Any, counted: NDArray[np.float64], shrunk: NDArray[np.float64], weight: float) -> None:
        """What the rules need that look at all contributions at the end."""
        if self._gathers or self._is_clipped.any():
            self._weights.append(weight)
        if self._is_clipped.any():
            self._norms.append(counted)
        for p in self._gathers:
            values = np.empty(self._stops[p] - self._starts[p], np.float32)
            kernels.decode(words, int(self._starts[p]), values)
            if shrunk[p] < 1:
                values *= np.float32(shrunk[p])
            self._gathered[p].append(values)

    def _merge_gathered(self, p: int) -> Float32:
        return MERGE_RULES[self._rules[p]](self._gathered[p], self._weights)

    def _measure_anew(self, p: int | np.signedinteger, unit: float) -> None:
        """Take another unit for a piece whose first norm was next to nothing: in that one the others overflow."""
        factor = unit / self._unit[p] if self._unit[p] > NO_DIRECTION_BELOW * unit else 0.0
        piece = self._total[self._starts[p] : self._stops[p]]
        piece[:] = piece.astype(np.float64) * factor
        self._norm_sq[p] *= factor * factor
        self._unit[p] = unit

    def _scales(self) -> tuple[Float32, NDArray[np.bool_]]:
        """What to multiply each piece of ``total`` by, and which pieces fall back to their plain sum."""
        if self.num_folded == 0:
            return np.zeros(len(self._norm_sq), np.float32), np.zeros(len(self._norm_sq), bool)
        scales = np.full(len(self._norm_sq), 1 / self._relative_weight)
        cancelled = np.zeros(len(scales), bool)
        if self.num_folded > 1:
            length = np.sqrt(self._norm_sq)
            cancelled = self._is_rda & (length <= DEGENERATE_BELOW * self._unit * self._relative_weight)
            follows = self._is_rda & ~cancelled
            radius = self._radius / self._relative_weight
            for p in np.flatnonzero(self._is_clipped):
                radius[p] = clipped_radius([float(norm[p]) for norm in self._norms], self._weights)
            np.divide(radius, length, out=scales, where=follows)
            scales[cancelled] = 0.0
        lost = cancelled & self._is_large & (self._radius > 0)
        self.degenerate = tuple(self.spec.pieces[p].name for p in np.flatnonzero(lost))
        return scales.astype(np.float32), cancelled & self._keeps_plain

    def _plain_of(self, p: int | np.signedinteger) -> Float32:
        start = self._plain_starts[p]
        return self._plain[start : start + self._stops[p] - self._starts[p]]
