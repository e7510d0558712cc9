"""Encodings of one and two bits an element, to see what they cost: too coarse for a run, and so no codec of the wire.

A contribution is made as coarse as its name says and travels in float32, which changes nothing of what is merged. As
in :mod:`gruppetto.numerics.words` 128 elements share a scale, which is a bfloat16: 1.125 and 2.125 bits an element.

================  =============================================================================  ======================
name              values of an element                                                           scale
================  =============================================================================  ======================
``sign``          −1, 1                                                                          mean magnitude
``ternary``       −1, 0, 1, the nearest: what ``int8`` and ``int4`` would be with two bits       largest magnitude
``four-levels``   ±0.4528, ±1.510, the nearest: the best four for a normal (Lloyd and Max)       root of the mean square
================  =============================================================================  ======================

>>> make_coarse(np.float32([3.0, -1.0, 0.5, -0.5]), "sign")
array([ 1.25, -1.25,  1.25, -1.25], dtype=float32)
>>> make_coarse(np.float32([3.0, -1.0, 0.5, -0.5]), "ternary")
array([3., 0., 0., 0.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gruppetto.numerics import CODECS
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.words import GROUP
from gruppetto.protocol.messages import Answer
from gruppetto.train.virtual_learner import LearnerTensors, Octets, Recipe

__all__ = ["COARSE", "CoarseTensors", "make_coarse"]

INNER, OUTER = 0.4528, 1.510
"""Reconstruction levels of the four-level quantiser with the least square error for N(0, 1) (Max 1960, table I)."""
BORDER = (INNER + OUTER) / 2


def _sign(x: Float32) -> tuple[Float32, Float32]:
    return np.abs(x).mean(axis=1, keepdims=True), np.copysign(np.float32(1), x)


def _ternary(x: Float32) -> tuple[Float32, Float32]:
    scale = np.abs(x).max(axis=1, keepdims=True)
    return scale, np.sign(x) * (np.abs(x) >= scale / 2)


def _four_levels(x: Float32) -> tuple[Float32, Float32]:
    scale = np.sqrt(np.square(x).mean(axis=1, keepdims=True))
    return scale, np.copysign(np.where(np.abs(x) >= BORDER * scale, np.float32(OUTER), np.float32(INNER)), x)


COARSE: dict[str, Callable[[Float32], tuple[Float32, Float32]]] = {
    "sign": _sign,
    "ternary": _ternary,
    "four-levels": _four_levels,
}
"""float32 [blocks, elements] → scales [blocks, 1], and each element in units of its scale."""


def make_coarse(values: Float32, name: str) -> Float32:
    """What would be decoded, float32 [numel], of values [numel]. A block that holds NaN or infinity becomes NaN."""
    out = np.empty_like(values)
    whole = len(values) // GROUP * GROUP
    for start, stop, width in ((0, whole, GROUP), (whole, len(values), len(values) - whole)):
        if start < stop:
            blocks = values[start:stop].reshape(-1, width)
            with np.errstate(invalid="ignore", over="ignore"):
                scale, units = COARSE[name](blocks)
                said = _bfloat16(scale) * units + np.float32(0)  # no element is −0, whatever numpy rounds with
            said[~np.isfinite(blocks).all(axis=1)] = np.nan
            out[start:stop] = said.reshape(-1)
    return out


def _bfloat16(scale: Float32) -> Float32:
    """The nearest that a bfloat16 can say."""
    codec, flat = CODECS["bf16"], scale.reshape(-1)
    return codec.decode(codec.encode(flat), flat.size).reshape(scale.shape)


class CoarseTensors(LearnerTensors):
    """A learner's tensors, of which contributions say no more than an encoding of :data:`COARSE` could."""

    def __init__(self, recipe: Recipe, name: str) -> None:
        super().__init__(recipe)
        self._name = name

    @property
    def keeps_rest(self) -> bool:
        return self._recipe.feedback

    def contribution(self, answer: Answer, factor: float) -> Callable[[], Octets]:
        assert factor == 1, "spoilt learners are no part of this question"
        offer = self._holdings.offer(answer)
        wanted = offer.base.values - offer.theta.values
        if self.keeps_rest and offer.rest is not None:
            wanted += offer.rest.values
        said = make_coarse(wanted, self._name)
        if self.keeps_rest:
            left = self._holdings.lend(answer.fragment)
            np.subtract(wanted, said, out=left.values)
            self._holdings.left(answer, left)
        offer.release()
        return lambda: said.view(np.uint8)
