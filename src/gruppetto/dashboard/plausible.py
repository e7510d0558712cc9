"""Numbers as a run can have them. A damaged trace says others, and one of these would spoil every later sum.

>>> whole(3), real(2)
(3, 2.0)
>>> setting_of({"rounds": 9, "min_quorum": "two", "sync_period": 10**30})
{'rounds': 9}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gruppetto.dashboard.series import LONGEST_S

__all__ = ["MOST_WHOLE", "header_of", "moment", "real", "setting_of", "whole"]

MOST_WHOLE = 1 << 53
"""As far as a page can count."""
MOST_REAL = 1e30
LATEST_WALL_S = 1e11
COUNTS = ("rounds", "num_fragments", "sync_period", "min_quorum", "overlap_steps", "start_learners")
"""What a picture uses of the settings."""


def whole(value: Any) -> int:
    """Raises :class:`ValueError` or TypeError, as the others do."""
    number = int(value)
    if not -MOST_WHOLE <= number <= MOST_WHOLE:
        raise ValueError(f"{number} of anything is too many")
    return number


def real(value: Any) -> float:
    """A measure; one that is not finite is what a run that diverges has."""
    number = float(value)
    if math.isfinite(number) and abs(number) >= MOST_REAL:
        raise ValueError(f"{number} is no measure")
    return number


def moment(t: float) -> float:
    """A time of a record, in seconds."""
    if not -LONGEST_S < t < LONGEST_S:
        raise ValueError(f"{t} s is no moment of a run")
    return t


def header_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """A header without what cannot be true in it."""
    found = dict(data)
    wall_s = found.pop("started_at", None)
    if isinstance(wall_s, int | float) and 0 <= wall_s < LATEST_WALL_S:
        found["started_at"] = wall_s
    for count in ("numel", "stride"):
        if not _is_count(found.get(count)):
            found.pop(count, None)
    return found


def setting_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a picture uses of the settings, each of its type."""
    return {name: data[name] for name in COUNTS if _is_count(data.get(name))}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_WHOLE
