"""From a trace to the figures of its run (:mod:`gruppetto.trace.measures`), and from nothing else.

The ledger is not read but kept again: every event goes through a fresh core, whose books have to agree with those that
the trace carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gruppetto.errors import DataError
from gruppetto.protocol.actions import AlarmKind
from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.protocol.round import Phase
from gruppetto.trace.log import Header, Record, read_trace
from gruppetto.trace.measures import (
    Alarmed,
    Death,
    Evaluated,
    LearnerMeasures,
    Measures,
    Recovery,
    RoundMeasures,
    Simulated,
    joined,
)
from gruppetto.trace.replay import SYNCER, Replayer
from gruppetto.trace.schema import value_of
from gruppetto.trace.timeline import Timeline

__all__ = ["measure"]

FATES = ("consumed", "merged", "discarded", "lost", "promised", "open")
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError)
"""What reading a record raises that does not say what its kind says."""


def measure(path: Path, notes: Iterable[Path] = ()) -> Measures:
    """Everything that the trace at ``path`` says; ``notes`` are further traces of which only the notes count.

    Raises :class:`DataError` for a trace that cannot be read.
    """
    collector = _Collector(str(path))
    for line in read_trace(path):
        collector.take(line)
    for more in notes:
        for line in read_trace(more):
            if isinstance(line, Record) and line.kind == "note":
                collector.note(line)
    return collector.result()


class _Collector:
    """Reads a trace line by line."""

    def __init__(self, where: str) -> None:
        self.found = Measures()
        self.replayer = Replayer(where)
        self._where = where
        self._timeline = Timeline()
        self._core_described = False
        self._open: dict[int, RoundMeasures] = {}
        """The rounds that have asked and are not published."""
        self._steps: dict[str, tuple[int, int]] = {}
        self._down: dict[str, tuple[float, str]] = {}
        self._reborn: set[str] = set()
        self._accounts: dict[str, tuple[str, float, int]] = {}
        """What learners that began in mid-run said of it: source, seconds, bytes."""
        self._traffic = (0, 0)
        self._alarms: dict[AlarmKind, Alarmed] = {}
        """Those that hold."""

    def take(self, line: Header | Record) -> None:
        self.replayer.take(line)
        if isinstance(line, Header):
            if not all(isinstance(line.data.get(key, 0), int | float) for key in ("started_at", "numel")):
                raise DataError("the header's figures are no numbers", where=f"{self._where}:{line.line}")
            self._begin_life(line)
            return
        if line.kind == "note":
            self.note(line)
            return
        self._timeline.at(line.t)
        handler = _HANDLERS.get((line.kind, line.name))
        if handler is not None and line.who == SYNCER:
            try:
                handler(self, _checked(line))
            except MALFORMED as error:
                raise DataError(f"is no {line.name} ({error!r})", where=f"{self._where}:{line.line}") from error

    @property
    def _now(self) -> float:
        return self._timeline.now

    def result(self) -> Measures:
        found, core = self.found, self.replayer.core
        found.wall_s, found.began_wall_s = self._now, self._timeline.began_wall_s
        found.replay = self.replayer.result()
        for r in found.rounds.values():
            for name in r.participants:
                self._learner(name).merged_rounds += 1
        if core is not None:
            found.rejected = dict(sorted(core.rejected.items()))
            found.clipped = dict(sorted(core.clipped.items()))
            found.tokens, found.fragment_tokens = dict(core.ledger.in_tokens()), core.ledger.in_fragment_tokens()
            found.num_fragments = core.ledger.num_fragments
            found.discarded_by = dict(sorted(core.ledger.discarded_by.items()))
            found.lost_by = {str(name): n for name, n in sorted(core.ledger.lost_by.items())}
            found.consumed_by = {str(name): n for name, n in core.ledger.consumed_by.items()}
            found.balanced = core.ledger.balances()
        found.evaluations.sort(key=lambda e: e.round)
        return found

    def note(self, record: Record) -> None:
        """Notes of a kind that is not known here are somebody else's."""
        data = record.data
        try:
            match record.name:
                case "ledger":
                    self.found.recorded_tokens = {fate: int(data.get(fate, 0)) for fate in FATES}
                case "simulated" if self.found.simulated is not None:
                    hours, goodput, uptime = (float(data[name]) for name in ("hours", "goodput", "uptime"))
                    self.found.simulated = replace(self.found.simulated, hours=hours, goodput=goodput, uptime=uptime)
                    self.found.ended_at = self._timeline.at(record.t)
                case "metrics" if data.get("loss") is not None and self.replayer.core is not None:
                    self.found.train_losses.append((self.replayer.core.round, record.who, float(data["loss"])))
                case "traffic":
                    self.found.up_bytes = self._traffic[0] + int(data["up"])
                    self.found.down_bytes = self._traffic[1] + int(data["down"])
                case "recovery" if record.who != SYNCER:  # the syncer notes by that name what it found at its start
                    source = " ".join(filter(None, (str(data["source"]), str(data["donor"]))))
                    self._accounts[record.who] = (source, float(data["seconds"]), int(data["payload_bytes"]))
                case "died":
                    death = Death(process=data["learner"], cause=data["cause"], wall_s=float(data["wall_s"]))
                    if death not in self.found.deaths:
                        self.found.deaths.append(death)
                case "evaluation":
                    evaluated = Evaluated(
                        round=int(data["round"]), loss=float(data["loss"]), perplexity=float(data["perplexity"])
                    )
                    # A judge that was restarted says again what it said before.
                    if evaluated not in self.found.evaluations:
                        self.found.evaluations.append(evaluated)
        except MALFORMED as error:
            raise DataError(f"is no note of {record.name} ({error!r})", where=f"line {record.line}") from error

    # ── what the lines say ───────────────────────────────────────────────────────────────────────────────────────

    def _begin_life(self, header: Header) -> None:
        if not self._core_described:
            self.found.header.update(header.data)
            if "simulated" in header.data:
                what, stride = header.data["simulated"], header.data.get("stride")
                self.found.simulated = Simulated(what=str(what), stride=stride if isinstance(stride, int) else 1)
            self._core_described = "setting" in header.data
        if not self._timeline.header(header.data):
            return
        for kind in list(self._alarms):
            self._end_alarm(kind)  # what the next life does not say again was over with the last one
        self._open.clear()
        self._traffic = (self.found.up_bytes or 0, self.found.down_bytes or 0)
        for name, learner in self.found.learners.items():
            if learner.states and learner.states[-1][1] in ("live", "joining"):
                self._down.setdefault(name, (self._now, "the syncer restarted"))
                learner.states.append((self._now, "away"))

    def _on_progress(self, data: Mapping[str, Any]) -> None:
        name, life, steps = data["learner"], data["incarnation"], data["steps"]
        core = self.replayer.core
        if core is None or core.members.current(name, life) is None:
            return
        learner = self._learner(name)
        last_life, before = self._steps.get(name, (0, 0))
        before = before if life == last_life else 0
        if steps > before:
            spent_s = (steps - before) * float(data["step_s"])
            learner.steps += steps - before
            learner.spent_s += spent_s
            if self.found.begun_at is not None:
                end = self._now if self.found.ended_at is None else self.found.ended_at
                learner.useful_s += max(0.0, end - (self._now - spent_s))
            learner.busy[-2:] = joined([*learner.busy[-2:], (self._now - spent_s, self._now)])
        self._steps[name] = (life, max(before, steps))

    def _on_send(self, data: Mapping[str, Any]) -> None:
        if "Begin" in data and self.found.begun_at is None:
            self.found.begun_at = self._now

    def _on_quorum_met(self, data: Mapping[str, Any]) -> None:
        core = self.replayer.core
        assert core is not None
        self._open[data["round"]] = RoundMeasures(
            round=data["round"],
            asked_at=self._now,
            quorum_s=data["quorum_s"],
            grace_s=data["grace_s"],
            at_clock=data["at_clock"],
            due=len(core.schedule.due(data["round"])),
        )

    def _on_round_closed(self, data: Mapping[str, Any]) -> None:
        opened = self._open.get(data["round"])
        if opened is not None:
            opened.closed_at = self._now
            opened.grace_spent_s = data["grace_spent_s"]
            opened.participants = tuple(data["participants"])
            opened.live = data["live"]
            opened.why = data["why"]
        for name in data["participants"]:
            if name in self._down and self._learner(name).states[-1][1] == "live":
                self._is_back(name)

    def _is_back(self, name: str) -> None:
        since, cause = self._down.pop(name)
        anew = name in self._reborn or cause == "joined"
        source, search_s, payload_bytes = self._accounts.pop(name, ("syncer" if anew else "own memory", None, 0))
        self._reborn.discard(name)
        self.found.recoveries.append(
            Recovery(
                learner=name,
                cause=cause,
                source=source,
                seconds=self._now - since,
                search_s=search_s,
                payload_bytes=payload_bytes,
            )
        )

    def _on_outer_stepped(self, data: Mapping[str, Any]) -> None:
        opened = self._open.get(data["round"])
        if opened is not None:
            opened.merge_s = self._now - opened.closed_at

    def _on_persisted(self, data: Mapping[str, Any]) -> None:
        opened = self._open.get(data["round"])
        if opened is not None:
            opened.persist_s = self._now - opened.closed_at - opened.merge_s

    def _on_published(self, data: Mapping[str, Any]) -> None:
        done, core = self._open.pop(data["round"], None), self.replayer.core
        if done is None or core is None:
            return
        done.done_at = self._now
        done.publish_s = self._now - done.closed_at - done.merge_s - done.persist_s
        done.consumed_tokens = core.ledger.consumed
        self.found.rounds[done.round] = done
        if core.phase is Phase.FINISHED:
            self.found.ended_at = self._now

    def _on_member_changed(self, data: Mapping[str, Any]) -> None:
        name, state, why = data["learner"], data["state"], data["why"]
        learner, core = self._learner(name), self.replayer.core
        had_left = bool(learner.states) and learner.states[-1][1] == "left"
        learner.states.append((self._now, state))
        match state:
            case "joining":
                learner.gone_at = None
                if why != "returned":
                    learner.lives += 1
                if why == "new" or had_left:
                    if core is not None and core.published_round > 0:
                        self._down[name] = (self._now, "joined")
                elif why == "reborn" and learner.lives > 1:
                    self._reborn.add(name)
                    since, _ = self._down.get(name, (self._now, ""))
                    self._down[name] = (since, "killed")
            case "away":
                self._down.setdefault(name, (self._now, "link lost" if why == "link lost" else "silent"))
            case "live":
                if learner.first_live is None:
                    learner.first_live = self._now
            case "left":
                learner.gone_at = self._now
                self._down.pop(name, None)
                self._reborn.discard(name)

    def _on_alarm(self, data: Mapping[str, Any]) -> None:
        kind = AlarmKind(data["kind"])
        self._end_alarm(kind)  # said anew, it has news
        alarm = Alarmed(t=self._now, kind=kind.value, text=data["text"])
        self.found.alarms.append(alarm)
        if ALARMS[kind].lasts:
            self._alarms[kind] = alarm
        else:
            alarm.over_t = self._now

    def _on_alarm_over(self, data: Mapping[str, Any]) -> None:
        self._end_alarm(AlarmKind(data["kind"]))

    def _end_alarm(self, kind: AlarmKind) -> None:
        alarm = self._alarms.pop(kind, None)
        if alarm is not None:
            alarm.over_t = self._now

    def _learner(self, name: str) -> LearnerMeasures:
        return self.found.learners.setdefault(name, LearnerMeasures())


def _checked(line: Record) -> Mapping[str, Any]:
    """What an action says, with every value of its kind. Events were checked when they were replayed; what is sent is
    looked at by its name only."""
    if line.kind == "in" or line.name == "Send":
        return line.data
    checked: Mapping[str, Any] = msgspec.to_builtins(value_of(line.name, line.data))
    return checked


_HANDLERS = {
    ("in", "Progress"): _Collector._on_progress,
    ("in", "OuterStepped"): _Collector._on_outer_stepped,
    ("in", "Persisted"): _Collector._on_persisted,
    ("in", "Published"): _Collector._on_published,
    ("out", "Send"): _Collector._on_send,
    ("out", "QuorumMet"): _Collector._on_quorum_met,
    ("out", "RoundClosed"): _Collector._on_round_closed,
    ("out", "MemberChanged"): _Collector._on_member_changed,
    ("out", "Alarm"): _Collector._on_alarm,
    ("out", "AlarmOver"): _Collector._on_alarm_over,
}
