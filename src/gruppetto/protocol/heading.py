"""Whether a learner pulls where the others go: its contributions against the momentum (section 6). An alarm only."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from statistics import median_low

from gruppetto.protocol.units import LearnerId

__all__ = ["AGAINST", "ENOUGH", "Heading", "against_the_others"]

FACTOR = 0.1
"""Weight of the newest cosine in the moving average."""
ENOUGH = 20
"""Contributions before anything is said: single ones point anywhere."""
AGAINST = -0.25
"""A mean cosine below this points back. Honest contributions of the tiny model average above 0
(docs/bad-learners.md); those of a model at the floor of its loss scatter around 0."""
WITH = 0.1
"""... and only if the others point forward clearly."""


@dataclass(slots=True, kw_only=True)
class Heading:
    """The moving average of one learner's cosines."""

    mean: float = 0.0
    count: int = 0

    def saw(self, cosine: float) -> None:
        """The mean of the first ones is a plain one, so that none of them weighs more."""
        self.count += 1
        self.mean += max(FACTOR, 1 / self.count) * (cosine - self.mean)


def against_the_others(
    headings: Mapping[LearnerId, Heading], already: Container[LearnerId] = ()
) -> tuple[LearnerId, ...]:
    """Who points back though the others do not; nobody while most point back: then it is the momentum that is wrong.

    Who is of them ``already`` stays until its mean is above 0, so that nobody comes and goes with every contribution.

    >>> means = {"a": 0.3, "b": 0.2, "c": -0.4}
    >>> against_the_others({LearnerId(name): Heading(mean=mean, count=50) for name, mean in means.items()})
    ('c',)
    """
    known = {name: h.mean for name, h in headings.items() if h.count >= ENOUGH}
    if len(known) < 2:
        return ()
    suspects = tuple(sorted(name for name, mean in known.items() if mean < (0.0 if name in already else AGAINST)))
    others = [mean for name, mean in known.items() if name not in suspects]
    return suspects if 2 * len(suspects) <= len(known) and median_low(others) > WITH else ()
