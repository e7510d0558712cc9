"""How published values travel down: whole, or as the step from the value before.

A step is taken in the coarse words of a codec *before* it is published: Θ becomes Θ + q, where q is what the words say
of the outer step and of what was left unsaid by the steps before; the rest is left for the next one. So the
published value is one value for everybody. Whoever has the one before adds the words to it and has it, bit for bit;
whoever has not takes it whole, and is as well off. Errors do not add up: Σ q + rest = Σ steps, but for the float32
sums, in which the value itself is kept, and for what the words of a rest leave out of it. A rest is kept in
:data:`REST`, a byte an element, so that an element of it is off by at most 1 / 60,000 of the largest step in its block
(``delta-int4``: 1 / 3,000), now this way, now that: of a step as long as 0.2 % of Θ no more than float32 rounds off Θ.

>>> import numpy as np
>>> before, after = np.float32([1.0, 2.0]), np.float32([1.5, 1.9])
>>> words, left, finite = take_step(before, after, None, CODECS["int4"])
>>> after.round(3), REST.decode(left, 2).round(3)
(array([1.502, 1.928], dtype=float32), array([-0.002, -0.028], dtype=float32))
>>> bool((follow(before, words, CODECS["int4"]) == after).all())
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gruppetto.numerics import kernels
from gruppetto.numerics.codec import CASTS, CODECS, Buffer, Codec
from gruppetto.numerics.kernels import Float32

__all__ = ["DOWNLINKS", "REST", "Downlink", "Kept", "follow", "take_step"]

REST = CODECS["int8"]
"""How what is left unsaid is kept. What these words leave out of it is never said."""

Kept = tuple[Float32 | NDArray[np.uint8], ...]
"""What has to be durable beside Θ: the outer optimizer's memory, float32 [numel] each, and the words of a rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Downlink:
    """``whole`` is how a value travels by itself, ``steps`` how it travels to who has the one before; None: not."""

    name: str
    whole: Codec
    steps: Codec | None = None

    @property
    def usual(self) -> Codec:
        """Of what travels as long as nobody misses anything."""
        return self.steps or self.whole

    @property
    def codecs(self) -> frozenset[str]:
        """The names of all that may travel."""
        return frozenset({self.whole.name, self.usual.name})


DOWNLINKS: dict[str, Downlink] = {
    downlink.name: downlink
    for downlink in (
        *(Downlink(name=name, whole=codec) for name, codec in CASTS.items()),
        Downlink(name="delta", whole=CODECS["fp32"], steps=CODECS["int8"]),
        Downlink(name="delta-int4", whole=CODECS["fp32"], steps=CODECS["int4"]),
    )
}


def take_step(
    before: Float32,
    after: Float32,
    rest: NDArray[np.uint8] | None,
    codec: Codec,
    left: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """Let a step be what its words say.

    ``after`` [numel] is where the step from ``before`` leads, and becomes where the words lead that are returned; with
    them comes what they leave unsaid of the step and of ``rest``, what was left before, both in the words of
    :data:`REST`, in ``left`` if given. Last: whether the new value is finite. If not, it is none.
    """
    assert codec.keeps_rest and before.shape == after.shape
    payload = np.empty(codec.payload_bytes(before.size), np.uint8)
    over = np.empty(REST.payload_bytes(before.size), np.uint8) if left is None else left
    owed = np.empty(0, np.uint8) if rest is None else rest
    assert over.size == REST.payload_bytes(before.size) and owed.size in (0, over.size)
    size = kernels.take_step(
        kernels.read_only(before),
        after,
        REST.to_words(kernels.read_only(owed)),
        codec.to_words(payload),
        REST.to_words(over),
    )
    return payload, over, math.isfinite(size)


def follow(before: Float32, step: Buffer, codec: Codec, out: Float32 | None = None) -> Float32:
    """Where a step leads: the very bits that :func:`take_step` made. Raises as :meth:`Codec.words` does."""
    values = np.empty(before.size, np.float32) if out is None else out
    assert values.shape == before.shape
    kernels.follow(kernels.read_only(before), codec.words(step, before.size), values)
    return values
