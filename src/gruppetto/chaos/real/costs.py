"""What faults cost. Each figure is held against the plan's expectations, where it has any."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from gruppetto.chaos.real.check import Check
from gruppetto.chaos.real.evidence import Evidence
from gruppetto.chaos.real.invariants import explains_silence
from gruppetto.chaos.real.kinds import SYNCER
from gruppetto.chaos.real.plan import Expectations
from gruppetto.chaos.real.riding import alive
from gruppetto.chaos.real.stretches import length

__all__ = ["COSTS"]

SOON_S = 0.1
"""How far apart a clock of a hundredth of a second and the moment of a kill may lie."""


def participation(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """The share of the live learners merged in a round."""
    share = seen.measures.participation
    if share is None:
        return Check(name="participation", state="not applicable", text="no round was closed")
    return _against(
        "participation", share, at_least=expect.min_participation, text=f"{share:.1%} of the live learners in a round"
    )


def throughput(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """What share of their time learners that live, and are neither stopped nor slowed, spend in usual steps."""
    alive_s = stepped_s = 0.0
    for name in seen.learners:
        usual_s = seen.step_s(name)
        if math.isnan(usual_s):
            continue
        free = alive(seen, name)
        alive_s += length(free)
        stepped_s += usual_s * sum(1 for s in seen.steps[name] if any(a < s.at <= b for a, b in free))
    if not alive_s:
        return Check(name="throughput-kept", state="not applicable", text="no learner ever made a step")
    share = min(1.0, stepped_s / alive_s)
    goodput = seen.measures.goodput
    more = "" if goodput is None else f"; goodput {goodput:.1%} of all time, dead learners' included"
    return _against(
        "throughput-kept", share, at_least=expect.min_throughput, text=f"{share:.1%} of living learner·time{more}"
    )


def recovery(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """From the kill of a learner to its first merged round, whole and beyond the start of its process."""
    whole, beyond, starts = [], [], []
    again = late = 0
    closed = [(at, who) for life in seen.syncer for at, _, who in life.closed]
    for fault in seen.done("kill"):
        if fault.who == SYNCER:
            continue
        until = min((f.began for f in seen.done("kill", who=fault.who) if f.began > fault.began), default=math.inf)
        born = next((life for life in seen.lives_of(fault.who) if fault.began - SOON_S < life.at < until), None)
        hello = math.inf if born is None else seen.hellos.get(born.pid, math.inf)
        merged = next((at for at, who in closed if hello < at < until and fault.who in who), None)
        if born is None or merged is None:
            again, late = again + (until < math.inf), late + (until == math.inf)
            continue
        whole.append(merged - fault.began)
        starts.append(hello - born.at)
        beyond.append(merged - hello)
    if not whole:
        return Check(name="learner-recovery", state="not applicable", text="no killed learner had to come back in time")
    figures = {
        "median_s": median(whole),
        "max_s": max(whole),
        "start_median_s": median(starts),
        "beyond_start_median_s": median(beyond),
        "beyond_start_max_s": max(beyond),
        "recoveries": len(whole),
        "killed_again_first": again,
        "not_back_before_the_end": late,
    }
    text = (
        f"{len(whole)} kills, merged again after {median(whole):.1f} s (max {max(whole):.1f}); of that process start "
        f"{median(starts):.1f} s, beyond it {median(beyond):.2f} s (max {max(beyond):.2f})"
        + (f"; {again} were killed again before that" if again else "")
        + (f"; {late} not back before the end" if late else "")
    )
    return _at_most("learner-recovery", max(whole), expect.max_recovery_s, text, figures)


def syncer_recovery(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """From the kill of the syncer to the next published round; learners train meanwhile."""
    published = [at for life in seen.syncer for at, _ in life.published]
    gaps = []
    for fault in seen.done("kill", "takeover", who=SYNCER):
        after = next((life.began for life in seen.syncer if life.began > fault.began), math.inf)
        again = next((at for at in published if at > after), None)
        if again is not None:
            gaps.append(again - fault.began)
    if not gaps:
        return Check(name="syncer-recovery", state="not applicable", text="the syncer was not killed")
    takeovers = sum(life.took_over for life in seen.syncer)
    text = f"{len(gaps)} kills, a round published again after {median(gaps):.2f} s (max {max(gaps):.2f})"
    text += f"; {takeovers} times a standby took over" if takeovers else ""
    figures = {"kills": len(gaps), "median_s": median(gaps), "max_s": max(gaps), "takeovers": takeovers}
    return _at_most("syncer-recovery", max(gaps), expect.max_syncer_gap_s, text, figures)


def heartbeats(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """Those that learners sent while they trained, and those of them that nobody answered in time."""
    sent = unanswered = 0
    missed: list[str] = []
    for name, beats in seen.beats.items():
        during = [beat for beat in beats if seen.began <= beat.at <= seen.ended]
        sent += len(during)
        silent = [beat.at for beat in during if not beat.answered]
        unanswered += len(silent)
        missed += [f"{name} at {at - seen.began:.1f} s" for at in silent if not explains_silence(seen, at, name)]
    if not sent:
        return Check(name="heartbeats", state="not applicable", text="no heartbeat was sent")
    text = f"{sent:,} sent, {unanswered} without an answer in time, of which {len(missed)} without a fault"
    text += f": {', '.join(missed[:3])}" if missed else ""
    figures = {"sent": sent, "unanswered": unanswered, "missed": len(missed)}
    return _at_most("heartbeats", len(missed), expect.max_missed_heartbeats, text, figures)


def quality(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """The last held-out loss against runs without faults."""
    losses = [e.loss for e in sorted(seen.measures.evaluations, key=lambda e: e.round)]
    if not losses:
        return Check(name="quality", state="not applicable", text="the model was never evaluated")
    last = losses[-1]
    if not compare:
        return Check(
            name="quality",
            state="measured",
            text=f"held-out loss {last:.4f}; nothing to compare",
            figures={"loss": last},
        )
    calm = fmean(compare)
    rise = last / calm - 1
    text = f"held-out loss {last:.4f}, without faults {calm:.4f} ({rise:+.2%})"
    return _at_most("quality", rise, expect.max_loss_rise, text, {"loss": last, "without_faults": calm, "rise": rise})


def _against(name: str, value: float, *, at_least: float | None, text: str) -> Check:
    figures = {"share": value, "at_least": at_least}
    if at_least is None:
        return Check(name=name, state="measured", text=text, figures=figures)
    return Check(name=name, state="pass" if value >= at_least else "fail", text=text, figures=figures)


def _at_most(name: str, value: float, most: float | None, text: str, figures: Mapping[str, Any]) -> Check:
    if most is None:
        return Check(name=name, state="measured", text=text, figures=figures)
    return Check(name=name, state="pass" if value <= most else "fail", text=text, figures={**figures, "at_most": most})


COSTS = (participation, throughput, recovery, syncer_recovery, heartbeats, quality)
