"""One time for a whole run: its records count seconds anew in every life of the syncer.

>>> timeline = Timeline()
>>> timeline.header({"started_at": 1000.0}), timeline.at(2.0), timeline.at(5.0)
(False, 0.0, 3.0)
>>> timeline.header({"started_at": 1010.0}), timeline.at(0.5)
(True, 8.5)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Timeline"]


class Timeline:
    """Seconds since the first record of all. Time runs on across restarts: the first record of each life comes when the
    last one ended, or as long after the very first as the wall times in the headers (``started_at``, seconds) say.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.began_wall_s: float | None = None
        """When the run began, in seconds since 1970, if its header says so."""
        self._first_started_at: float | None = None
        self._core_described = False
        self._life_is_new = True
        self._offset: float | None = None
        self._zero_at: float | None = None
        """When the clock of the present life stood at 0, if that is known."""

    def header(self, data: Mapping[str, Any]) -> bool:
        """Take a header in; whether another life begins with it. A syncer writes one header when it starts, and one
        when it knows the model: together they describe a life."""
        starts, describes_core = "started_at" in data, "setting" in data
        if not self._core_described:
            self._first_started_at = data.get("started_at", self._first_started_at)
            self._core_described = describes_core
        if not (starts or describes_core) or self._life_is_new:
            return False
        began = self._first_started_at if self.began_wall_s is None else self.began_wall_s
        self._zero_at = data["started_at"] - began if began is not None and starts else None
        self.now = max(self.now, self._zero_at or 0.0)
        self._life_is_new, self._offset = True, None
        return True

    def at(self, t: float) -> float:
        """When an event or a decision was recorded that says ``t``."""
        self._life_is_new = False
        if self._offset is None:
            at_once = self.now - t
            self._offset = at_once if self._zero_at is None else max(at_once, self._zero_at)
            if self.began_wall_s is None and self._first_started_at is not None:
                # The first record of all is the time 0 of the run; its writer had begun before.
                self.began_wall_s = self._first_started_at + t
        self.now = max(self.now, self._offset + t)
        return self.now
