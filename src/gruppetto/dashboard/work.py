"""What learners did, and what became of it: steps, contributions, rejections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gruppetto.dashboard.plausible import MOST_WHOLE, real, whole
from gruppetto.dashboard.seen import OPEN_ROUNDS, Seen
from gruppetto.protocol.admission import ROUTINE

__all__ = ["Work"]


class Work(Seen):
    """Takes the records about learners and their contributions."""

    def _on_progress(self, who: str, data: Mapping[str, Any]) -> None:
        now, lane = self.now, self.lane(data["learner"])
        steps, tokens = whole(data["steps"]), whole(data["tokens"])
        if lane is None:
            self._on_progress_in_the_crowd(data["learner"], data["incarnation"], steps, tokens)
            return
        lane.reborn(data["incarnation"])
        made, trained = steps - lane.life_steps, tokens - lane.life_tokens
        lane.clock = whole(data["clock"])
        if made <= 0:
            return
        step_s = real(data["step_s"])
        lane.life_steps, lane.life_tokens = steps, max(tokens, lane.life_tokens)
        lane.steps = min(lane.steps + made, MOST_WHOLE)
        lane.tokens = min(lane.tokens + max(0, trained), MOST_WHOLE)
        lane.step_s, lane.stepped_at = step_s, now
        # A step that was under way when the run began, or while it was reported late, did not begin before the last.
        lane.busy.spread(max(0.0, now - made * step_s), now)
        lane.measured["step_s"].add(now, step_s)
        lane.measured["behind"].add(now, max(0, self.published + 1 - lane.clock))
        self.series["consumed"].add(now, max(0, trained))
        self.series["steps"].add(now, made)

    def _on_progress_in_the_crowd(self, name: str, incarnation: int, steps: int, tokens: int) -> None:
        before = self.crowd.get(name)
        if before is None:
            return  # beyond those whose names are remembered
        life, life_steps, life_tokens = before if before[0] == incarnation else (incarnation, 0, 0)
        made, trained = max(0, steps - life_steps), max(0, tokens - life_tokens)
        self.crowd[name] = (life, life_steps + made, life_tokens + trained)
        self.crowd_tokens = min(self.crowd_tokens + trained, MOST_WHOLE)
        self.series["consumed"].add(self.now, trained)
        self.series["steps"].add(self.now, made)

    def _on_answer(self, who: str, data: Mapping[str, Any]) -> None:
        norms = data.get("norms") or ()
        norm = math.sqrt(sum(real(n) ** 2 for n in norms)) if norms else None
        if len(self._answers) > 1 << 16:
            self._answers.clear()
        self._answers[data["learner"], data["fragment"]] = (whole(data["round"]), whole(data["tokens"]), norm)

    def _on_fold(self, who: str, data: Mapping[str, Any]) -> None:
        now, name = self.now, data["learner"]
        answered = self._answers.pop((name, data["fragment"]), None)
        if len(self._weights) >= OPEN_ROUNDS:
            self._weights.clear()
        weights = self._weights.setdefault(whole(data["round"]), {})
        weights[name] = weights.get(name, 0.0) + real(data["weight"])
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
            lane.measured["cosine"].add(now, real(data["cosine"]))

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
