"""Recoveries of a long run, told together: why learners were gone, how often, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from gruppetto.report.in_short import as_duration

__all__ = ["MOST_TOLD", "about_many"]

MOST_TOLD = 12
"""So many have a sentence each."""


def about_many(recoveries: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on all of them.

    >>> cut = {"learner": "anna", "cause": "link lost", "seconds": 30.0}
    >>> about_many([cut, cut | {"learner": "ben", "seconds": 90.0}, cut | {"cause": "killed"}])
    '2 learners were gone 3 times (2 link lost, 1 killed) and merged again after 30.0 s as a rule, 1 min 30 s at most.'
    """
    causes = Counter(str(recovery["cause"]) for recovery in recoveries)
    names = {str(recovery["learner"]) for recovery in recoveries}
    seconds = [float(recovery["seconds"]) for recovery in recoveries]
    who = f"{len(names)} learners were" if len(names) > 1 else f"{min(names)} was"
    why = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
    return (
        f"{who} gone {len(recoveries)} times ({why}) and merged again after {as_duration(median(seconds))} as a rule, "
        f"{as_duration(max(seconds))} at most."
    )
