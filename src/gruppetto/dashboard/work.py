"""What learners did, and what became of it: steps, contributions, rejections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gruppetto.dashboard.seen import Seen
from gruppetto.protocol.admission import ROUTINE

__all__ = ["Work"]


class Work(Seen):
    """Takes the records about learners and their contributions."""

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
        lane.rejected_since[reason] += 1
        if reason not in ROUTINE and (name, reason) not in self._said:
            self._said.add((name, reason))
            self.happenings.say(now, "refused", name, f"A contribution was not merged ({reason}), in round "
                                f"{data['round']}. Only the first of this reason is listed.")  # fmt: skip
