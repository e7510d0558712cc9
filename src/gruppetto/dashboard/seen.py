"""What is known of a run, in bounded memory: what the rest of the picture writes, and whoever looks reads."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from gruppetto.dashboard.happenings import Happenings
from gruppetto.dashboard.lane import Lane
from gruppetto.dashboard.series import Series
from gruppetto.trace.timeline import Timeline

__all__ = ["DEATHS", "MAX_LANES", "PHASES", "Raised", "RoundSeen", "Seen"]

MAX_LANES = 512
"""Learners that have a lane of their own; what further ones do still counts in the sums."""
LATEST_ROUNDS, ALARMS, DEATHS = 24, 100, 4096
OPEN_ROUNDS = 1024
"""A damaged trace may open rounds that never close."""
PHASES = ("quorum_s", "grace_spent_s", "merge_s", "persist_s", "publish_s")
"""What a round is made of, in order."""
SERIES = (
    *PHASES,
    "grace_s",
    "pace_s",
    "live",
    "participants",
    "round",
    "loss",
    "spoilt",
    "consumed",
    "merged",
    "steps",
    "up",
    "down",
)


@dataclass(slots=True, kw_only=True)
class RoundSeen:
    """A round, as far as it has come."""

    round: int
    at: float
    """When it had its quorum, then when it was published."""
    stage: str = "grace"
    quorum_s: float = 0.0
    grace_s: float = 0.0
    grace_spent_s: float = 0.0
    merge_s: float = 0.0
    persist_s: float = 0.0
    publish_s: float = 0.0
    closed_at: float = 0.0
    live: int = 0
    participants: tuple[str, ...] = ()
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Raised:
    """An alarm. ``over_t``: when the trace says that it is over."""

    t: float
    kind: str
    text: str
    over_t: float | None = None


class Seen:
    """All that a picture holds."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.header: dict[str, Any] = {}
        self.setting: dict[str, Any] = {}
        self.lives = 0
        self.lanes: dict[str, Lane] = {}
        self.crowd: dict[str, tuple[int, int, int]] = {}
        """Names beyond :data:`MAX_LANES`, as far as they are remembered; the process of each, its steps and tokens."""
        self.crowd_tokens = 0
        """What they have trained on, over all their lives."""
        self.series = {name: Series(slots=2048) for name in SERIES}
        self.latest: deque[RoundSeen] = deque(maxlen=LATEST_ROUNDS)
        self.opened: dict[int, RoundSeen] = {}
        """Those that have asked and are not published, in order."""
        self.published = 0
        self.merged_round: int | None = None
        """The newest one that holds work of anybody."""
        self.published_at: float | None = None
        self.finished = False
        self.happenings = Happenings()
        self.alarms: deque[Raised] = deque(maxlen=ALARMS)
        self.alarms_said: Counter[str] = Counter()
        """Of each kind, also those that are no longer kept; a damaged trace may have many kinds."""
        self.evaluations: list[tuple[float, int, float]] = []
        """(when that round was published, round, held-out loss)."""
        self.rejected: Counter[str] = Counter()
        self.clipped: Counter[str] = Counter()
        self.ledger: dict[str, int] = {}
        """The run's own books, where the trace has them."""
        self.simulated: dict[str, float] = {}
        """What a simulator said at the end of a run that it had made: hours, goodput and uptime of the chips."""
        self.up_bytes = self.down_bytes = 0
        self.persist_failed = ""
        self.damaged_lines = 0
        self.lines = 0
        self._traffic = (0, 0)
        self._answers: dict[tuple[str, int], tuple[int, int, float | None]] = {}
        self._weights: dict[int, dict[str, float]] = {}
        """Of the contributions to each round that has not closed, by learner."""
        self._said: set[tuple[str, str]] = set()
        self._died: dict[tuple[str, float], None] = {}
        self._rounds_at: list[tuple[int, float]] = []

    @property
    def now(self) -> float:
        """The time of the newest record."""
        return self.timeline.now

    @property
    def open(self) -> RoundSeen | None:
        """The first of the open rounds."""
        return next(iter(self.opened.values()), None)

    @property
    def rounds(self) -> int | None:
        """The last round of the run; None if it has no end or is not known."""
        return self.setting.get("rounds")

    @property
    def world(self) -> str:
        """real, virtual or simulated, as in :class:`gruppetto.trace.measures.Measures`."""
        if "simulated" in self.header:
            return "simulated"
        return "virtual" if self.header.get("virtual") else "real"

    def steps(self) -> list[int]:
        """Of each learner that has made any."""
        return [lane.steps for lane in self.lanes.values() if lane.steps]

    def round_at(self, round: int) -> float:
        """About when a round was published."""
        for known, t in reversed(self._rounds_at):
            if known <= round:
                return t
        return 0.0

    def lane(self, name: object) -> Lane | None:
        """The lane of a learner, a new one if need be; None when there are too many."""
        if not isinstance(name, str):
            raise TypeError(name)
        lane = self.lanes.get(name)
        if lane is None:
            if len(self.lanes) >= MAX_LANES:
                if len(self.crowd) < 1 << 16:
                    self.crowd.setdefault(name, (0, 0, 0))
                return None
            lane = self.lanes[name] = Lane(name=name)
        return lane
