"""What others have written into the trace or beside it: losses, evaluations, traffic, deaths, the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gruppetto.dashboard.plausible import MOST_WHOLE, moment, real, whole
from gruppetto.dashboard.seen import DEATHS, Seen
from gruppetto.trace.replay import SYNCER

__all__ = ["Notes"]


class Notes(Seen):
    """Takes notes. Those of a kind that is not known here are somebody else's."""

    def _on_metrics(self, who: str, data: Mapping[str, Any]) -> None:
        loss, lane = data.get("loss"), self.lane(who)
        if loss is None:
            return
        number = real(loss)
        if not math.isfinite(number):
            self.series["spoilt"].add(self.now, 1)
        self.series["loss"].add(self.now, number)
        if lane is not None:
            lane.measured["loss"].add(self.now, number)
            lane.spoilt = not math.isfinite(number)

    def _on_traffic(self, who: str, data: Mapping[str, Any]) -> None:
        up, down = self._traffic[0] + whole(data["up"]), self._traffic[1] + whole(data["down"])
        self.series["up"].add(self.now, max(0, up - self.up_bytes))
        self.series["down"].add(self.now, max(0, down - self.down_bytes))
        self.up_bytes, self.down_bytes = min(up, MOST_WHOLE), min(down, MOST_WHOLE)

    def _on_evaluation(self, who: str, data: Mapping[str, Any]) -> None:
        round, loss = whole(data["round"]), real(data["loss"])
        # A judge that was started again says again what it said before; the trace repeats it at the end.
        if math.isfinite(loss) and all(known != round for _, known, _ in self.evaluations):
            self.evaluations.append((self.round_at(round), round, loss))
            self.evaluations.sort(key=lambda each: each[1])
            if len(self.evaluations) > 4096:
                del self.evaluations[1:-1:2]

    def _on_ledger(self, who: str, data: Mapping[str, Any]) -> None:
        fates = ("consumed", "merged", "discarded", "lost", "promised", "open")
        self.ledger = {fate: whole(data.get(fate, 0)) for fate in fates}

    def _on_simulated(self, who: str, data: Mapping[str, Any]) -> None:
        self.simulated = {name: real(data[name]) for name in ("hours", "goodput", "uptime")}

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
            self.now, "recovered", who, f"Begins with its state from: {source} ({real(data['seconds']):.1f} s)."
        )

    def _on_died(self, who: str, data: Mapping[str, Any]) -> None:
        name, wall_s = str(data["learner"]), real(data["wall_s"])
        if (name, wall_s) in self._died:
            return
        self._died[name, wall_s] = None
        if len(self._died) > DEATHS:
            del self._died[next(iter(self._died))]
        began = self.timeline.began_wall_s
        at = self.now if began is None else moment(max(0.0, wall_s - began))
        self.happenings.say(at, "died", name, f"The process died ({data['cause']}).")
        lane = self.lanes.get(name)
        if lane is not None and lane.state == "away":
            lane.why = f"the process died ({data['cause']})"
