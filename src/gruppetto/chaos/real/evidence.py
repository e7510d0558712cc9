"""What is known of a run under chaos when it is over, from four witnesses that do not know of each other.

The conductor's log says what was done; the riders' own lines say which steps were really made; the syncer's trace says
what it decided; its last words say what it rejected. All times are wall times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from gruppetto.chaos.real.levers import Life, Places, read_lines
from gruppetto.errors import DataError
from gruppetto.report.rundir import EVALUATION, TRACE
from gruppetto.trace.log import Header, Record, read_trace
from gruppetto.trace.measures import Measures
from gruppetto.trace.metrics import measure

__all__ = ["Beat", "Evidence", "Happened", "Step", "SyncerLife", "gather", "within_lives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault as it came. ``ended`` is infinite while it goes on; a missed one found nobody to hit."""

    number: int
    kind: str
    who: str
    began: float
    ended: float
    missed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat that a learner's process sent. ``answered``: within its period, after which it is given up."""

    at: float
    life: int
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that a learner's process really made. ``seen``: the newest round it had heard of."""

    at: float
    life: int
    clock: int
    seen: int


@dataclass(slots=True, kw_only=True)
class SyncerLife:
    """What one process of the syncer recorded."""

    began: float
    """When it was started; for one that was waiting, when it took over."""
    took_over: bool = False
    """It had been waiting for its turn."""
    restored: int | None = None
    """The round it took up; None for a run that is new."""
    unseen: int = 0
    """Rounds after that one which the life before may have been about to publish; their numbers are not used again."""
    restored_versions: tuple[int, ...] = ()
    published: list[tuple[float, int]] = field(default_factory=list)
    closed: list[tuple[float, int, tuple[str, ...]]] = field(default_factory=list)
    """(when, round, participants)."""
    away: list[tuple[float, str, str]] = field(default_factory=list)
    """(when, learner, why)."""


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything, in order of time. Training goes from ``began`` to ``ended``."""

    began: float
    ended: float
    liveness_s: float
    learners: tuple[str, ...]
    faults: list[Happened]
    lives: list[Life]
    hellos: dict[int, float]
    """By process, when it first dialled."""
    steps: dict[str, list[Step]]
    syncer: list[SyncerLife]
    beats: dict[str, list[Beat]]
    malformed: int
    """Bodies and messages that the syncer refused before its core heard of them, over all its lives."""
    measures: Measures

    def lives_of(self, name: str) -> list[Life]:
        return [life for life in self.lives if life.who == name]

    def done(self, *kinds: str, who: str | None = None) -> list[Happened]:
        """Faults of these kinds that really came."""
        return [f for f in self.faults if f.kind in kinds and not f.missed and who in (None, f.who)]

    def step_s(self, name: str) -> float:
        """The usual step of a learner: the median time between two, within one life. NaN without two."""
        gaps = [b.at - a.at for a, b in within_lives(self.steps[name])]
        return median(gaps) if gaps else math.nan


def within_lives(steps: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Each step with the one after it, where one process made both."""
    return [(a, b) for a, b in pairwise(steps) if a.life == b.life]


def gather(directory: Path, *, learners: Sequence[str], liveness_s: float) -> Evidence:
    """From a run directory. Raises :class:`DataError` if there is no run under chaos in it, or it never trained."""
    places = Places(root=directory / "chaos")
    notes = [line for line in read_trace(places.log) if isinstance(line, Record)]
    moments = {note.name: note.t for note in notes if note.name in ("training", "calm")}
    if "training" not in moments:
        raise DataError("training never began", where=str(directory), fix="look at syncer.log and the learners' logs")
    trace = directory / TRACE
    evaluations = [directory / EVALUATION] if (directory / EVALUATION).exists() else []
    steps, beats, hellos = {}, {}, {}
    for name in learners:
        lines = list(read_lines(places.steps(name)))
        steps[name] = [
            Step(at=said["at"], life=said["life"], clock=said["clock"], seen=said["seen"])
            for said in lines
            if "clock" in said
        ]
        beats[name] = [
            Beat(at=said["at"], life=said["life"], answered=said["beat"]) for said in lines if "beat" in said
        ]
        hellos.update({said["life"]: said["at"] for said in lines if "hello" in said})
    lives = [Life(**said) for said in read_lines(places.lives)]
    syncer = _lives_of_syncer(trace)
    last_published = max((at for life in syncer for at, _ in life.published), default=moments["training"])
    return Evidence(
        began=moments["training"],
        ended=min(moments.get("calm", last_published), last_published),
        liveness_s=liveness_s,
        learners=tuple(learners),
        faults=_faults(notes),
        lives=sorted(lives, key=lambda life: life.at),
        hellos=hellos,
        steps=steps,
        beats=beats,
        syncer=syncer,
        malformed=sum(int(note.data["counts"].get("malformed", 0)) for note in notes if note.name == "rejected"),
        measures=measure(trace, evaluations),
    )


def _faults(notes: Sequence[Record]) -> list[Happened]:
    ended = {note.data["number"]: note.t for note in notes if note.name == "ended"}
    found = []
    for note in notes:
        if note.name not in ("began", "missed"):
            continue
        number = note.data["number"]
        missed = note.name == "missed"
        found.append(
            Happened(
                number=number,
                kind=note.data["fault"],
                who=note.who,
                began=note.t,
                ended=note.t if missed else ended.get(number, math.inf),
                missed=missed,
            )
        )
    return found


def _lives_of_syncer(trace: Path) -> list[SyncerLife]:
    lives: list[SyncerLife] = []
    zero = 0.0
    for line in read_trace(trace):
        if isinstance(line, Header):
            if "started_at" in line.data:
                zero = float(line.data["started_at"])
                took_over_at = line.data.get("took_over_at")
                began = zero if took_over_at is None else float(took_over_at)
                lives.append(SyncerLife(began=began, took_over=took_over_at is not None))
            if lives and (state := line.data.get("state")) is not None:
                lives[-1].restored = int(state["round"])
                lives[-1].unseen = int(line.data.get("unseen", 0))
                lives[-1].restored_versions = tuple(state["versions"])
        elif lives and line.kind != "note":
            _take(lives[-1], zero + line.t, line.name, line.data)
    return lives


def _take(life: SyncerLife, at: float, name: str, data: Mapping[str, Any]) -> None:
    match name:
        case "Published":
            life.published.append((at, data["round"]))
        case "RoundClosed":
            life.closed.append((at, data["round"], tuple(data["participants"])))
        case "MemberChanged" if data["state"] == "away":
            life.away.append((at, data["learner"], data["why"]))
