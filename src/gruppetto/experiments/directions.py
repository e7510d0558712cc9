"""How outer gradients lie to each other: nearly orthogonal, says the paper, which is why a mean of M is √M shorter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gruppetto.experiments.store import Result

__all__ = ["Directions"]

LATE = 4
"""The last of so many parts of a run."""


class Directions:
    """Means over the last quarter of the rounds in which two or more learners took part, and over all of them.

    Learners that begin together go the same way at first; what they agree on is soon learnt.

    >>> seen = Directions()
    >>> seen.take([np.float32([3, 0]), np.float32([0, 3])], [1.0, 1.0])
    >>> {name: round(value, 3) for name, value in seen.found().items()}
    {'cosine': 0.0, 'mean_norm': 0.707, 'mean_norm_if_orthogonal': 0.707, 'cosine_of_all': 0.0}
    """

    def __init__(self) -> None:
        self._cosines: list[float] = []
        self._lengths: list[float] = []
        self._orthogonal: list[float] = []

    def take(self, deltas: Sequence[NDArray[np.float32]], weights: Sequence[float]) -> None:
        """The contributions to one fragment in one round, flat, and how they are weighed."""
        norms = [float(np.linalg.norm(delta)) for delta in deltas]
        moving = [i for i, norm in enumerate(norms) if norm > 0]
        if len(moving) < 2:
            return
        units = np.stack([deltas[i] / np.float32(norms[i]) for i in moving])
        gram = (units @ units.T).astype(np.float64)
        pairs = len(moving) * (len(moving) - 1)
        self._cosines.append(float(gram.sum() - np.trace(gram)) / pairs)
        shares = np.asarray([weights[i] for i in moving]) / math.fsum(weights[i] for i in moving)
        lengths = np.asarray([norms[i] for i in moving])
        merged = float(np.linalg.norm((shares.astype(np.float32) * lengths.astype(np.float32)) @ units))
        usual = float(shares @ lengths)
        self._lengths.append(merged / usual)
        self._orthogonal.append(float(np.sqrt(np.square(shares * lengths).sum())) / usual)

    def found(self) -> Result:
        """``cosine`` of two contributions; ``mean_norm``, the length of their mean beside their mean length; and the
        same if they were orthogonal (1/√M of equal ones)."""
        if not self._cosines:
            return {}
        seen = {"cosine": self._cosines, "mean_norm": self._lengths, "mean_norm_if_orthogonal": self._orthogonal}
        late = {name: values[-max(1, len(values) // LATE) :] for name, values in seen.items()}
        late["cosine_of_all"] = self._cosines
        return {name: math.fsum(values) / len(values) for name, values in late.items()}
