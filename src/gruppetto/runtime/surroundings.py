"""What a syncer sees beside the protocol: room on its disk, wall clocks of learners, losses that they report."""

from __future__ import annotations

import math
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gruppetto.protocol.events import LookedAround
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.clock import wall_time_s

__all__ = ["Surroundings", "is_spoilt"]

BYTES_AN_ELEMENT = 8
"""Of the weights and their momentum."""
HEARTBEATS = 5
LEAST_ROOM_BYTES = 16 << 20
"""For what is written beside them: control state, trace, logs."""


class Surroundings:
    """``heard`` with every heartbeat; ``look`` now and then makes an event for the core of it all.

    >>> around = Surroundings(Path("/"), wall_s=lambda: 1000.0, free_bytes=lambda place: 7)
    >>> around.heard("anna", "1060.0")
    >>> seen = around.look(["anna", "ben"], {"anna": {"loss": 2.5}}, numel=10)
    >>> seen.free_bytes, seen.wanted_bytes, seen.skews_s, seen.losses
    (7, 16777296, (('anna', 60.0),), (('anna', 2.5),))
    """

    def __init__(
        self,
        state: Path,
        *,
        wall_s: Callable[[], float] = wall_time_s,
        free_bytes: Callable[[Path], int] = lambda place: shutil.disk_usage(place).free,
    ) -> None:
        self._state, self._wall_s, self._free_bytes = state, wall_s, free_bytes
        self._skews_s: dict[LearnerId, deque[float]] = {}
        """What the last heartbeats of each said."""

    def heard(self, learner: LearnerId, wall_s: str | None) -> None:
        """What its wall clock said as it spoke; None, or no number, is passed over."""
        try:
            there_s = float(wall_s or "")
        except ValueError:
            return
        if math.isfinite(there_s):
            readings = self._skews_s.setdefault(learner, deque(maxlen=HEARTBEATS))
            readings.append(there_s - self._wall_s())

    def look(
        self, live: Iterable[LearnerId], metrics: Mapping[LearnerId, Mapping[str, float]], *, numel: int
    ) -> LookedAround:
        """Of those who are ``live``; what is known of others is forgotten."""
        names = sorted(live)
        self._skews_s = {name: self._skews_s[name] for name in names if name in self._skews_s}
        try:
            free: int | None = self._free_bytes(self._state)
        except OSError:
            free = None
        losses = {name: metrics.get(name, {}).get("loss") for name in names}
        return LookedAround(
            free_bytes=free,
            wanted_bytes=LEAST_ROOM_BYTES + BYTES_AN_ELEMENT * numel,
            # What comes late makes a clock look slow, never fast: the largest is nearest to the truth.
            skews_s=tuple(sorted((name, max(readings)) for name, readings in self._skews_s.items())),
            losses=tuple((name, float(loss)) for name, loss in losses.items() if loss is not None),
        )


def is_spoilt(metrics: Mapping[str, float]) -> bool:
    """Whether a learner has reported a loss that is not finite.

    >>> is_spoilt({"loss": float("nan")}), is_spoilt({"loss": 2.5}), is_spoilt({})
    (True, False, False)
    """
    return not math.isfinite(metrics.get("loss", 0.0))
