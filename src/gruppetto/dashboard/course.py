"""How the run goes: rounds, comings and goings, alarms, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gruppetto.dashboard.plausible import real, whole
from gruppetto.dashboard.seen import OPEN_ROUNDS, PHASES, Raised, RoundSeen, Seen
from gruppetto.trace.replay import SYNCER

__all__ = ["Course"]

KINDS = 256
"""Of alarms that are counted."""


class Course(Seen):
    """Takes the records of the syncer about itself and who is here."""

    def _on_quorum_met(self, who: str, data: Mapping[str, Any]) -> None:
        now, round = self.now, whole(data["round"])
        if len(self.opened) >= OPEN_ROUNDS:
            self.opened.clear()
        self.opened[round] = RoundSeen(
            round=round,
            at=now,
            quorum_s=real(data["quorum_s"]),
            grace_s=real(data["grace_s"]),
            live=whole(data["live"]),
        )

    def _on_round_closed(self, who: str, data: Mapping[str, Any]) -> None:
        now, names = self.now, tuple(data["participants"])
        round = whole(data["round"])
        done = self.opened.setdefault(round, RoundSeen(round=round, at=now))
        done.stage, done.closed_at, done.grace_spent_s = "merge", now, real(data["grace_spent_s"])
        done.participants, done.live, done.why = names, whole(data["live"]), str(data["why"])
        weights = self._weights.pop(round, {})
        total = sum(weights.get(name, 0.0) for name in names)
        for name in names:
            lane = self.lane(name)
            if lane is not None:
                lane.merged_rounds += 1
                lane.rejected_since.clear()
                lane.last_merged_round = self.merged_round = done.round
                lane.measured["share"].add(now, weights.get(name, 0.0) / total if total > 0 else 0.0)
        self.series["live"].add(now, done.live)
        self.series["participants"].add(now, len(names))

    def _on_outer_stepped(self, who: str, data: Mapping[str, Any]) -> None:
        now, opened = self.now, self.opened.get(whole(data["round"]))
        if opened is not None:
            opened.stage, opened.merge_s = "persist", now - opened.closed_at

    def _on_persisted(self, who: str, data: Mapping[str, Any]) -> None:
        now, self.persist_failed = self.now, ""
        opened = self.opened.get(whole(data["round"]))
        if opened is not None:
            opened.stage, opened.persist_s = "publish", now - opened.closed_at - opened.merge_s

    def _on_persist_failed(self, who: str, data: Mapping[str, Any]) -> None:
        self.persist_failed = str(data["why"])

    def _on_published(self, who: str, data: Mapping[str, Any]) -> None:
        now, done = self.now, self.opened.pop(whole(data["round"]), None)
        if self.published_at is not None:
            self.series["pace_s"].add(now, now - self.published_at)
        self.published, self.published_at = whole(data["round"]), now
        self._remember_round(self.published, now)
        self.series["round"].add(now, self.published)
        if done is not None:
            done.publish_s, done.at, done.stage = now - done.closed_at - done.merge_s - done.persist_s, now, "done"
            for name in (*PHASES, "grace_s"):
                self.series[name].add(now, getattr(done, name))
            self.latest.append(done)
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
        if kind in self.alarms_said or len(self.alarms_said) < KINDS:
            self.alarms_said[kind] += 1
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

    def _remember_round(self, round: int, t: float) -> None:
        self._rounds_at.append((round, t))
        if len(self._rounds_at) > 4096:
            del self._rounds_at[1::2]
