"""Lines of a trace straight from its writer, for a syncer that records none."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from gruppetto.dashboard.picture import Picture
from gruppetto.dashboard.plausible import setting_of

__all__ = ["Tap", "begin_from"]

MAX_BYTES = 64 * 2**20


class Tap:
    """Keeps lines until they are taken, up to ``MAX_BYTES``: then the oldest go."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.anew = 0
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0

    def put(self, line: bytes) -> None:
        """A line of the trace, with its end."""
        self._lines.append(line)
        self._waiting_bytes += len(line)
        while self._waiting_bytes > MAX_BYTES:
            self._waiting_bytes -= len(self._lines.popleft())

    def size(self) -> int:
        return self.read_bytes + self._waiting_bytes

    def written_at(self) -> float | None:
        return None

    def lines(self, most_bytes: int) -> Iterator[bytes]:
        while self._lines and most_bytes > 0:
            line = self._lines.popleft()
            self._waiting_bytes -= len(line)
            self.read_bytes += len(line)
            most_bytes -= len(line)
            yield line

    def close(self) -> None:
        self._lines.clear()
        self._waiting_bytes = 0


def begin_from(picture: Picture, status: Mapping[str, Any], setting: Mapping[str, Any], numel: int | None) -> None:
    """Let a picture begin in the middle of a run, with what the syncer says of itself
    (:func:`gruppetto.runtime.health.status_of`)."""
    picture.header.update({"run_id": status["run_id"], "numel": numel})
    picture.setting = setting_of(setting)
    picture.lives, picture.published = 1, int(status["round"])
    picture.rejected.update(status["rejected"])
    picture.clipped.update(status["clipped"])
    for name, said in status["learners"].items():
        lane = picture.lane(name)
        if lane is None:
            continue
        lane.states.enter(0.0, str(said["state"]))
        lane.reborn(said["incarnation"])
        lane.clock, lane.step_s = said["clock"], said["step_s"]
        lane.steps = lane.life_steps = said["steps"]
        lane.tokens = lane.life_tokens = said["tokens"]
        lane.merged_rounds, lane.last_merged_round = said["merged_rounds"], said["last_merged_round"]
