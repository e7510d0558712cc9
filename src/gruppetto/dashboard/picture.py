"""A run as it can be looked at: every line of its trace is folded in, memory stays bounded.

Nothing is decided or replayed here: what learners and the syncer said is believed. The figures that have to be right
to the last token come from :mod:`gruppetto.trace.metrics` and its replay; those here are for watching a run go on.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gruppetto.dashboard.happenings import Happenings
from gruppetto.dashboard.lane import Lane
from gruppetto.dashboard.series import Series
from gruppetto.protocol.admission import ROUTINE
from gruppetto.trace.log import HEAD
from gruppetto.trace.replay import SYNCER
from gruppetto.trace.timeline import Timeline

__all__ = ["MAX_LANES", "PHASES", "Picture", "RoundSeen"]

MAX_LANES = 512
"""Learners that have a lane of their own; what further ones do still counts in the sums."""
LATEST_ROUNDS, ALARMS, DEATHS = 24, 100, 4096
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
    "consumed",
    "merged",
    "steps",
    "up",
    "down",
)
NAME = re.compile(rb'"(in|out|note)":"[A-Za-z-]{1,40}"')
"""No text within a record looks like it: there, quotation marks are escaped."""
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


class _Line(msgspec.Struct):
    t: float
    who: str
    data: dict[str, Any]


_DECODER = msgspec.json.Decoder(_Line)
_HEADER = msgspec.json.Decoder(dict[str, Any])


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


class Picture:
    """Takes lines; whoever looks reads the attributes."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.header: dict[str, Any] = {}
        self.setting: dict[str, Any] = {}
        self.lives = 0
        self.lanes: dict[str, Lane] = {}
        self.crowd: set[str] = set()
        """Names beyond :data:`MAX_LANES`, as far as they are remembered."""
        self.series = {name: Series(slots=2048) for name in SERIES}
        self.latest: deque[RoundSeen] = deque(maxlen=LATEST_ROUNDS)
        self.open: RoundSeen | None = None
        self.published = 0
        self.published_at: float | None = None
        self.finished = False
        self.happenings = Happenings()
        self.alarms: deque[Raised] = deque(maxlen=ALARMS)
        self.evaluations: list[tuple[float, int, float]] = []
        """(when that round was published, round, held-out loss)."""
        self.rejected: Counter[str] = Counter()
        self.clipped: Counter[str] = Counter()
        self.ledger: dict[str, int] = {}
        """The run's own books, where the trace has them."""
        self.up_bytes = self.down_bytes = 0
        self.persist_failed = ""
        self.damaged_lines = 0
        self.lines = 0
        self._traffic = (0, 0)
        self._answers: dict[tuple[str, int], tuple[int, int, float | None]] = {}
        self._weights: dict[str, float] = {}
        self._said: set[tuple[str, str]] = set()
        self._died: dict[tuple[str, float], None] = {}
        self._rounds_at: list[tuple[int, float]] = []

    @property
    def now(self) -> float:
        """The time of the newest record."""
        return self.timeline.now

    @property
    def rounds(self) -> int | None:
        """The last round of the run; None if it has no end or is not known."""
        return self.setting.get("rounds")

    def take(self, line: bytes) -> None:
        """One line of a trace, or of notes beside it. What cannot be read is counted and passed over."""
        self.lines += 1
        try:
            if line.startswith(HEAD):
                self._begin_life(_HEADER.decode(line))
                return
            named = NAME.search(line)
            if named is None:
                self.damaged_lines += 1
                return
            kind, handler = named.group(1), _HANDLERS.get(named.group(0))
            if handler is None and kind != b"in":
                return
            if handler is _ON_SEND and b'"Clipping":{' not in line:
                return  # most of what is sent is of no interest, and there is much of it
            said = _DECODER.decode(line)
            if kind != b"note":
                self.timeline.at(said.t)
            if handler is not None and (kind == b"note" or said.who == SYNCER):
                handler(self, said.who, said.data)
        except (msgspec.DecodeError, RecursionError, *MALFORMED):
            self.damaged_lines += 1

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
                    self.crowd.add(name)
                return None
            lane = self.lanes[name] = Lane(name=name)
        return lane

    # ── what the lines say ───────────────────────────────────────────────────────────────────────────────────────

    def _begin_life(self, data: dict[str, Any]) -> None:
        if "notes" in data:
            return  # a file of notes, written by somebody else
        again = self.timeline.header(data)
        self.header.update(data)
        setting = data.get("setting")
        if isinstance(setting, dict):
            self.setting = setting
        if again and self.lives:
            self.happenings.say(self.now, "restart", SYNCER, "The syncer started again; learners trained on.")
            self._traffic = (self.up_bytes, self.down_bytes)
            self.open = None
            for lane in self.lanes.values():
                if lane.state in ("live", "joining"):
                    lane.states.enter(self.now, "away")
                    lane.why = "the syncer restarted"
        self.lives += again or not self.lives

    def _on_progress(self, who: str, data: Mapping[str, Any]) -> None:
        now, lane = self.now, self.lane(data["learner"])
        steps, tokens = int(data["steps"]), int(data["tokens"])
        if lane is None:
            return
        lane.reborn(data["incarnation"])
        made, trained = steps - lane.life_steps, tokens - lane.life_tokens
        lane.clock = int(data["clock"])
        if made <= 0:
            return
        step_s = float(data["step_s"])
        lane.life_steps, lane.life_tokens = steps, max(tokens, lane.life_tokens)
        lane.steps += made
        lane.tokens += max(0, trained)
        lane.step_s, lane.stepped_at = step_s, now
        # A step that was under way when the run began, or while it was reported late, did not begin before the last.
        lane.busy.spread(max(0.0, now - made * step_s), now)
        lane.measured["step_s"].add(now, step_s)
        lane.measured["behind"].add(now, max(0, self.published + 1 - lane.clock))
        self.series["consumed"].add(now, max(0, trained))
        self.series["steps"].add(now, made)

    def _on_answer(self, who: str, data: Mapping[str, Any]) -> None:
        norms = data.get("norms") or ()
        norm = math.sqrt(sum(float(n) ** 2 for n in norms)) if norms else None
        if len(self._answers) > 1 << 16:
            self._answers.clear()
        self._answers[data["learner"], data["fragment"]] = (int(data["round"]), int(data["tokens"]), norm)

    def _on_fold(self, who: str, data: Mapping[str, Any]) -> None:
        now, name = self.now, data["learner"]
        answered = self._answers.pop((name, data["fragment"]), None)
        self._weights[name] = self._weights.get(name, 0.0) + float(data["weight"])
        if answered is not None:
            self.series["merged"].add(now, answered[1] / max(1, self.setting.get("num_fragments") or 1))
            lane = self.lane(name)
            if answered[2] is not None and lane is not None:
                lane.measured["norm"].add(now, answered[2])

    def _on_send(self, who: str, data: Mapping[str, Any]) -> None:
        if "Clipping" in data:
            self.clipped[str(data["Clipping"]["cause"])] += 1

    def _on_folded(self, who: str, data: Mapping[str, Any]) -> None:
        now, lane = self.now, self.lane(data["learner"])
        if lane is not None and data.get("cosine") is not None:
            lane.measured["cosine"].add(now, float(data["cosine"]))

    def _on_drop(self, who: str, data: Mapping[str, Any]) -> None:
        now, name, reason = self.now, data["learner"], str(data["reason"])
        self._answers.pop((name, data["fragment"]), None)
        self.rejected[reason] += 1
        lane = self.lane(name)
        if lane is None:
            return
        lane.rejected[reason] += 1
        if reason not in ROUTINE and (name, reason) not in self._said:
            self._said.add((name, reason))
            self.happenings.say(now, "refused", name, f"A contribution was not merged ({reason}), in round "
                                f"{data['round']}. Only the first of this reason is listed.")  # fmt: skip

    def _on_quorum_met(self, who: str, data: Mapping[str, Any]) -> None:
        now = self.now
        self.open = RoundSeen(
            round=int(data["round"]), at=now, quorum_s=data["quorum_s"], grace_s=data["grace_s"], live=data["live"]
        )

    def _on_round_closed(self, who: str, data: Mapping[str, Any]) -> None:
        now, names = self.now, tuple(data["participants"])
        done = self.open or RoundSeen(round=int(data["round"]), at=now)
        self.open = done
        done.stage, done.closed_at, done.grace_spent_s = "merge", now, float(data["grace_spent_s"])
        done.participants, done.live, done.why = names, int(data["live"]), str(data["why"])
        total = sum(self._weights.get(name, 0.0) for name in names)
        for name in names:
            lane = self.lane(name)
            if lane is not None:
                lane.merged_rounds += 1
                lane.last_merged_round = done.round
                lane.measured["share"].add(now, self._weights.get(name, 0.0) / total if total > 0 else 0.0)
        self._weights.clear()
        self.series["live"].add(now, done.live)
        self.series["participants"].add(now, len(names))

    def _on_outer_stepped(self, who: str, data: Mapping[str, Any]) -> None:
        now = self.now
        if self.open is not None:
            self.open.stage, self.open.merge_s = "persist", now - self.open.closed_at

    def _on_persisted(self, who: str, data: Mapping[str, Any]) -> None:
        now, self.persist_failed = self.now, ""
        if self.open is not None:
            self.open.stage, self.open.persist_s = "publish", now - self.open.closed_at - self.open.merge_s

    def _on_persist_failed(self, who: str, data: Mapping[str, Any]) -> None:
        self.persist_failed = str(data["why"])

    def _on_published(self, who: str, data: Mapping[str, Any]) -> None:
        now, done = self.now, self.open
        if self.published_at is not None:
            self.series["pace_s"].add(now, now - self.published_at)
        self.published, self.published_at = int(data["round"]), now
        self._remember_round(self.published, now)
        self.series["round"].add(now, self.published)
        if done is not None and done.round == self.published:
            done.publish_s, done.at, done.stage = now - done.closed_at - done.merge_s - done.persist_s, now, "done"
            for name in (*PHASES, "grace_s"):
                self.series[name].add(now, getattr(done, name))
            self.latest.append(done)
            self.open = None
        if self.rounds is not None and self.published >= self.rounds and not self.finished:
            self.finished = True
            self.happenings.say(now, "round", SYNCER, f"Round {self.published} was the last: the run is finished.")

    def _on_member_changed(self, who: str, data: Mapping[str, Any]) -> None:
        now, name, state, why = self.now, data["learner"], str(data["state"]), str(data["why"])
        lane = self.lane(name)
        if lane is None:
            return
        before = lane.state
        lane.states.enter(now, state)
        lane.why = why
        match state:
            case "joining" if why == "new":
                self.happenings.say(now, "joined", name, "Joined the run." if self.published else "Is here.")
            case "joining":
                how = "as a new process" if why == "reborn" else "with its old process"
                self.happenings.say(now, "back", name, f"Is back, {how}.")
            case "live" if before == "joining" and self.published:
                self.happenings.say(now, "recovered", name, "Has the weights of the run and takes part.")
            case "away":
                self.happenings.say(now, "away", name, f"Is away: {why}. The others ride on.")
            case "left":
                self.happenings.say(now, "left", name, f"Has left: {why}.")

    def _on_alarm(self, who: str, data: Mapping[str, Any]) -> None:
        kind, text = str(data["kind"]), str(data["text"])
        self._end_alarm(kind)  # said anew, it has news
        self.alarms.append(Raised(t=self.now, kind=kind, text=text))
        self.happenings.say(self.now, "alarm", kind, text)

    def _on_alarm_over(self, who: str, data: Mapping[str, Any]) -> None:
        self._end_alarm(str(data["kind"]))

    def _end_alarm(self, kind: str) -> None:
        for alarm in self.alarms:
            if alarm.kind == kind and alarm.over_t is None:
                alarm.over_t = self.now

    def _on_checkpoint_closed(self, who: str, data: Mapping[str, Any]) -> None:
        lacks = f"; it lacks something: {data['why']}" if data.get("why") else ""
        text = f"Checkpoint {data['mark']} of round {data['round']}: {len(data['parts'])} learners are in it{lacks}."
        self.happenings.say(self.now, "checkpoint", SYNCER, text)

    def _on_checkpoint_refused(self, who: str, data: Mapping[str, Any]) -> None:
        self.happenings.say(self.now, "checkpoint", SYNCER, f"No checkpoint {data['mark']}: {data['why']}.")

    # ── notes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_metrics(self, who: str, data: Mapping[str, Any]) -> None:
        loss, lane = data.get("loss"), self.lane(who)
        if loss is not None:
            self.series["loss"].add(self.now, float(loss))
            if lane is not None:
                lane.measured["loss"].add(self.now, float(loss))

    def _on_traffic(self, who: str, data: Mapping[str, Any]) -> None:
        up, down = self._traffic[0] + int(data["up"]), self._traffic[1] + int(data["down"])
        self.series["up"].add(self.now, max(0, up - self.up_bytes))
        self.series["down"].add(self.now, max(0, down - self.down_bytes))
        self.up_bytes, self.down_bytes = up, down

    def _on_evaluation(self, who: str, data: Mapping[str, Any]) -> None:
        round, loss = int(data["round"]), float(data["loss"])
        # A judge that was started again says again what it said before; the trace repeats it at the end.
        if math.isfinite(loss) and all(known != round for _, known, _ in self.evaluations):
            self.evaluations.append((self.round_at(round), round, loss))
            self.evaluations.sort(key=lambda each: each[1])
            if len(self.evaluations) > 4096:
                del self.evaluations[1:-1:2]

    def _on_ledger(self, who: str, data: Mapping[str, Any]) -> None:
        fates = ("consumed", "merged", "discarded", "lost", "promised", "open")
        self.ledger = {fate: int(data.get(fate, 0)) for fate in fates}

    def _on_recovery(self, who: str, data: Mapping[str, Any]) -> None:
        if "source" not in data:
            found = "; ".join(str(each) for each in data.get("found", ())) or "less than was published"
            self.happenings.say(self.now, "restart", SYNCER, f"What the last life left: {found}.")
            return
        source = " ".join(filter(None, (str(data["source"]), str(data.get("donor") or ""))))
        lane = self.lane(who)
        if lane is not None:
            lane.source = source
        self.happenings.say(
            self.now, "recovered", who, f"Begins with its state from: {source} ({float(data['seconds']):.1f} s)."
        )

    def _on_died(self, who: str, data: Mapping[str, Any]) -> None:
        name, wall_s = str(data["learner"]), float(data["wall_s"])
        if (name, wall_s) in self._died:
            return
        self._died[name, wall_s] = None
        if len(self._died) > DEATHS:
            del self._died[next(iter(self._died))]
        began = self.timeline.began_wall_s
        at = self.now if began is None else max(0.0, wall_s - began)
        self.happenings.say(at, "died", name, f"The process died ({data['cause']}).")
        lane = self.lanes.get(name)
        if lane is not None and lane.state == "away":
            lane.why = f"the process died ({data['cause']})"

    # ── small parts ──────────────────────────────────────────────────────────────────────────────────────────────

    def _remember_round(self, round: int, t: float) -> None:
        self._rounds_at.append((round, t))
        if len(self._rounds_at) > 4096:
            del self._rounds_at[1::2]


_ON_SEND = Picture._on_send
_Handler = Callable[[Picture, str, Mapping[str, Any]], None]
_HANDLERS: dict[bytes, _Handler] = {
    b'"in":"Progress"': Picture._on_progress,
    b'"in":"Answer"': Picture._on_answer,
    b'"out":"Fold"': Picture._on_fold,
    b'"in":"Folded"': Picture._on_folded,
    b'"out":"Send"': Picture._on_send,
    b'"out":"Drop"': Picture._on_drop,
    b'"out":"QuorumMet"': Picture._on_quorum_met,
    b'"out":"RoundClosed"': Picture._on_round_closed,
    b'"in":"OuterStepped"': Picture._on_outer_stepped,
    b'"in":"Persisted"': Picture._on_persisted,
    b'"in":"PersistFailed"': Picture._on_persist_failed,
    b'"in":"Published"': Picture._on_published,
    b'"out":"MemberChanged"': Picture._on_member_changed,
    b'"out":"Alarm"': Picture._on_alarm,
    b'"out":"AlarmOver"': Picture._on_alarm_over,
    b'"out":"CheckpointClosed"': Picture._on_checkpoint_closed,
    b'"out":"CheckpointRefused"': Picture._on_checkpoint_refused,
    b'"note":"metrics"': Picture._on_metrics,
    b'"note":"traffic"': Picture._on_traffic,
    b'"note":"evaluation"': Picture._on_evaluation,
    b'"note":"ledger"': Picture._on_ledger,
    b'"note":"recovery"': Picture._on_recovery,
    b'"note":"died"': Picture._on_died,
}
"""By what the record is. Every event tells the time; an action or note that is not here is not even decoded."""
