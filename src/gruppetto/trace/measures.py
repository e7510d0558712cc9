"""The figures of a run, and what they mean (section 12 of the algorithm).

All of them are over the *training time*, which begins when the first learners
are told to begin and ends when the last round is published, or with the trace if it has not come to that:

* **useful** learner·time: the reported durations of inner steps, a slow learner's included: it trains at its own pace.
* **allocated** learner·time: from the moment a learner first takes part until it says goodbye or training ends. One
  that died stays allocated: its absence is what goodput is there to show.
* **goodput** = useful / allocated. **uptime** = share of time in which at least one learner makes a step.
* **participation** of a round = learners merged / learners alive at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gruppetto.trace.replay import ReplayResult

__all__ = [
    "Alarmed",
    "Death",
    "Evaluated",
    "LearnerMeasures",
    "Measures",
    "Recovery",
    "RoundMeasures",
    "Simulated",
    "joined",
]


@dataclass(slots=True, kw_only=True)
class RoundMeasures:
    """One round. Times are seconds since the run began; a phase that was not reached took 0."""

    round: int
    asked_at: float
    quorum_s: float
    """The round waited so long for its quorum."""
    grace_s: float
    """The grace window it was given,"""
    grace_spent_s: float = 0.0
    """... and what it used of it."""
    merge_s: float = 0.0
    persist_s: float = 0.0
    publish_s: float = 0.0
    due: int
    """Fragments that were due; there are none in some rounds when H > P."""
    at_clock: int
    """Learners that had reached the round when it asked."""
    live: int = 0
    participants: tuple[str, ...] = ()
    why: str = ""
    closed_at: float = 0.0
    done_at: float | None = None
    consumed_tokens: int = 0
    """Tokens that all learners had trained on when it was published."""


@dataclass(slots=True, kw_only=True)
class LearnerMeasures:
    """One learner over all its lives."""

    steps: int = 0
    spent_s: float = 0.0
    """Seconds that its steps took."""
    useful_s: float = 0.0
    """Those of them that lie in the training time."""
    lives: int = 0
    merged_rounds: int = 0
    first_live: float | None = None
    gone_at: float | None = None
    states: list[tuple[float, str]] = field(default_factory=list)
    """(when, state it entered), in order."""
    busy: list[tuple[float, float]] = field(default_factory=list)
    """Stretches of time spent in steps, joined where they touch."""

    @property
    def step_s(self) -> float | None:
        """The mean duration of a step."""
        return self.spent_s / self.steps if self.steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The held-out loss (nats per token) of the global model as of ``round``."""

    round: int
    loss: float
    perplexity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A learner that was gone, or is new in a run under way, is merged again.

    ``cause``: "killed" (a new process), "link lost", "silent", "the syncer restarted", or "joined" for a newcomer.
    ``source``: where its state came from: "peer NAME", "checkpoint", "syncer", or "own memory" of the same process.
    ``seconds``: from being away, or from the Hello of a newcomer, to the close of the first round that it is part of.
    """

    learner: str
    cause: str
    source: str
    seconds: float
    search_s: float | None = None
    """What of it the learner's own search for a state took, by its own account."""
    payload_bytes: int = 0
    """Taken from peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that the launcher saw dead though it was needed: ``SIGKILL``, ``exit 1``."""

    process: str
    """A learner's name, or ``syncer``."""
    cause: str
    wall_s: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What only a simulator knows of the run that it made: :mod:`gruppetto.sim`, without tensors and tokens."""

    what: str
    """Who rode on what."""
    stride: int = 1
    """Inner steps between two boundaries, which is what the records call a step."""
    hours: float | None = None
    """Of virtual time; None: nobody saw its end."""
    goodput: float | None = None
    """Of all chips' time, as ``gruppetto simulate`` prints it; that of the records is learners' time."""
    uptime: float | None = None


@dataclass(slots=True, kw_only=True)
class Alarmed:
    """An alarm of the syncer, and until when it held."""

    t: float
    kind: str
    text: str
    over_t: float | None = None
    """None: to the end."""


@dataclass(slots=True, kw_only=True)
class Measures:
    """What a trace says about its run. Times are seconds since its first record."""

    header: dict[str, Any] = field(default_factory=dict)
    """All that the headers of the first life say."""
    rounds: dict[int, RoundMeasures] = field(default_factory=dict)
    """Those that were published, by number; of several shards, whose rounds have the same numbers, in the order in
    which they were closed."""
    learners: dict[str, LearnerMeasures] = field(default_factory=dict)
    train_losses: list[tuple[int, str, float]] = field(default_factory=list)
    """(round, learner, loss on its own batch), as learners reported them."""
    evaluations: list[Evaluated] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    began_wall_s: float | None = None
    """When the run began, in seconds since 1970, if its header says so."""
    alarms: list[Alarmed] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    """Contributions that were merged for less than they hold, by cause."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the replayed ledger: consumed, merged, discarded, lost, open."""
    fragment_tokens: dict[str, int] = field(default_factory=dict)
    """What became of them, in fragment-tokens."""
    num_fragments: int = 0
    """0: the trace ends before the model was known."""
    discarded_by: dict[str, int] = field(default_factory=dict)
    """Fragment-tokens."""
    lost_by: dict[str, int] = field(default_factory=dict)
    """Fragment-tokens lost with a learner that died, or with the syncer it had given them to."""
    consumed_by: dict[str, int] = field(default_factory=dict)
    recorded_tokens: dict[str, int] | None = None
    """What the run's own ledger said at its end."""
    balanced: bool = True
    up_bytes: int | None = None
    down_bytes: int | None = None
    begun_at: float | None = None
    ended_at: float | None = None
    """When the last round was published; None for a run that has not come to its end."""
    wall_s: float = 0.0
    replay: ReplayResult | None = None
    simulated: Simulated | None = None
    """None: it was not simulated."""
    shard: str = ""
    """Whose trace it is, if the run has several: ``2/3``."""
    shards: tuple[Measures, ...] = ()
    """Of several traces together: what each of them says (:mod:`gruppetto.trace.together`)."""

    @property
    def world(self) -> Literal["real", "virtual", "simulated"]:
        """Whose clock it was: that of the world; a virtual one, of real tensors; a virtual one, of rates alone."""
        if self.simulated is not None:
            return "simulated"
        return "virtual" if self.header.get("virtual") else "real"

    @property
    def newest_round(self) -> int:
        """The last round that was made; of several shards, by all of them."""
        return min((each.newest_round for each in self.shards), default=max(self.rounds, default=0))

    @property
    def window(self) -> tuple[float, float]:
        """The training time."""
        start = self.begun_at if self.begun_at is not None else self.wall_s
        return start, max(start, self.ended_at if self.ended_at is not None else self.wall_s)

    def since_it_began(self, death: Death) -> float | None:
        """Seconds from the beginning of the run to a death; None if the header does not say when that was."""
        return None if self.began_wall_s is None else max(0.0, death.wall_s - self.began_wall_s)

    @property
    def goodput(self) -> float | None:
        """Useful / allocated learner·time; None before anybody has trained."""
        start, end = self.window
        useful = allocated = 0.0
        for learner in self.learners.values():
            if learner.first_live is None:
                continue
            first = max(start, learner.first_live)
            last = end if learner.gone_at is None else min(end, learner.gone_at)
            allocated += max(0.0, last - first)
            useful += min(learner.useful_s, max(0.0, last - first))
        return useful / allocated if allocated > 0 else None

    @property
    def uptime(self) -> float | None:
        """The share of time in which at least one learner makes a step."""
        start, end = self.window
        if end <= start:
            return None
        stretches = sorted((max(a, start), min(b, end)) for each in self.learners.values() for a, b in each.busy)
        return sum(b - a for a, b in joined(stretches) if b > a) / (end - start)

    @property
    def participation(self) -> float | None:
        """The mean share of live learners merged, over the rounds in which a fragment was due."""
        shares = [len(r.participants) / max(1, r.live, len(r.participants)) for r in self.rounds.values() if r.due]
        return sum(shares) / len(shares) if shares else None


def joined(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches in order of their starts, as the fewest that cover the same time.

    >>> joined([(0.0, 1.0), (1.0, 2.0), (1.5, 1.75), (3.0, 4.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    fewest: list[tuple[float, float]] = []
    for a, b in stretches:
        if fewest and a <= fewest[-1][1]:
            fewest[-1] = (min(fewest[-1][0], a), max(fewest[-1][1], b))
        else:
            fewest.append((a, b))
    return fewest
