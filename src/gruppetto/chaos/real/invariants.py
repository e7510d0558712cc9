"""What must never happen, whatever goes wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gruppetto.chaos.real.check import Check
from gruppetto.chaos.real.evidence import Evidence, Happened, within_lives
from gruppetto.chaos.real.kinds import SYNCER
from gruppetto.chaos.real.plan import Expectations
from gruppetto.chaos.real.riding import alive, progress
from gruppetto.chaos.real.stretches import length, overlap, without
from gruppetto.trace.measures import joined

__all__ = ["INVARIANTS", "explains_silence"]

TAKES_AWAY = frozenset({"kill", "stop", "slow", "cut", "half-open", "partition", "loss", "corrupt"})
"""After one of these on it a learner may be found away. Not latency, and not a narrow link."""
SYNCER_GONE = frozenset({"kill", "takeover", "stop", "slow", "disk-full", "cut", "half-open", "partition", "loss"})
PING_S = 10.0
"""How long a half-open control connection may go unnoticed by its learner."""
AFTER_S = 2.0
ALWAYS = frozenset({"late", "stale-base", "no-work", "not-asked"})
"""Rejections that asynchrony alone explains: an answer that crossed the end of its round on the way."""
EXPLAINS: Mapping[str, frozenset[str]] = {
    "not-finite": frozenset({"nan"}),
    "norm": frozenset({"scale"}),
    "malformed": frozenset({"corrupt", "cut", "kill", "takeover", "half-open", "partition", "loss", "stop", "slow"}),
    "stale-epoch": frozenset({"kill", "takeover", "stop"}),
    "stale-incarnation": frozenset({"kill", "stop", "partition", "cut", "half-open"}),
    "unknown-learner": frozenset({"kill", "takeover", "stop"}),
    "duplicate": frozenset({"kill", "cut", "partition", "loss", "corrupt", "half-open", "takeover"}),
}


def reaches_its_end(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """The last round is published."""
    reached = max(seen.measures.rounds, default=0)
    if seen.measures.ended_at is not None:
        return Check(name="reaches-its-end", state="pass", text=f"round {reached}", figures={"round": reached})
    return Check(name="reaches-its-end", state="fail", text=f"it stands at round {reached}", figures={"round": reached})


def nothing_merged_is_lost(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """Rounds go on where they were, life after life of the syncer; nobody has seen a round that is gone."""
    wrong: list[str] = []
    newest = 0
    versions: tuple[int, ...] = ()
    for number, life in enumerate(seen.syncer):
        if life.restored is None:
            if number and newest:
                wrong.append(f"life {number + 1} of the syncer began from nothing after round {newest}")
        else:
            if life.restored < newest:
                wrong.append(f"life {number + 1} took up round {life.restored}, but {newest} had been published")
            told = max((s.seen for steps in seen.steps.values() for s in steps if s.at < life.began), default=0)
            if life.restored < told:
                wrong.append(f"life {number + 1} took up round {life.restored}, but a learner had seen {told}")
            if any(now < before for now, before in zip(life.restored_versions, versions, strict=False)):
                wrong.append(f"life {number + 1} took up a fragment in an older version")
            newest = max(newest, life.restored)
            versions = life.restored_versions
        skipped = life.unseen
        for _, round in life.published:
            if round != newest + skipped + 1 and (round, newest) != (0, 0):  # the first weights are round 0
                wrong.append(f"round {round} was published after round {newest}")
            newest, skipped = round, 0
    for name, steps in seen.steps.items():
        if any(b.seen < a.seen for a, b in within_lives(steps)):
            wrong.append(f"{name} was told of an older round than it knew")
    return Check(
        name="nothing-merged-is-lost",
        state="fail" if wrong else "pass",
        text="; ".join(wrong[:3]) if wrong else f"{newest} rounds over {len(seen.syncer)} lives of the syncer, no gap",
        figures={"rounds": newest, "syncer_lives": len(seen.syncer), "wrong": wrong},
    )


def ledger_balances(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """consumed = merged + discarded + lost, by the run's own books and by replayed ones."""
    found = seen.measures
    agrees = found.recorded_tokens is None or found.recorded_tokens == found.tokens
    same = found.replay is not None and found.replay.identical
    told = ", ".join(f"{count:,} {fate}" for fate, count in found.tokens.items() if count)
    wrong = [
        text
        for holds, text in (
            (found.balanced, "consumed is not merged + discarded + lost + open"),
            (agrees, f"the run's own ledger says {found.recorded_tokens}"),
            (same, "the trace does not replay to the same decisions"),
        )
        if not holds
    ]
    return Check(
        name="ledger-balances",
        state="fail" if wrong else "pass",
        text="; ".join(wrong) or f"{told} tokens",
        figures={"tokens": found.tokens, "wrong": wrong},
    )


def never_stands_still(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """While at least one learner lives somebody makes a step, by the steps that processes really made."""
    moving = joined(sorted(stretch for name in seen.learners for stretch in progress(seen, name)))
    living = joined(sorted(stretch for name in seen.learners for stretch in alive(seen, name)))
    alive_s = length(living)
    if not alive_s:
        return Check(name="never-stands-still", state="not applicable", text="no learner ever made a step")
    uptime = overlap(moving, living) / alive_s
    gap_s = max((b - a for a, b in without(living, moving)), default=0.0)
    return Check(
        name="never-stands-still",
        state="pass" if uptime >= expect.min_uptime else "fail",
        text=f"uptime {uptime:.2%} of {alive_s:.0f} s in which a learner lived; longest pause of all {gap_s:.2f} s",
        figures={"uptime": uptime, "alive_s": alive_s, "longest_pause_s": gap_s},
    )


def no_false_deaths(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """A learner that lives and is not cut off is never away in the eyes of the syncer."""
    false, away = [], 0
    for life in seen.syncer:
        for at, name, why in life.away:
            away += 1
            if at <= seen.ended and not explains_silence(seen, at, name):
                false.append(f"{name} at {at - seen.began:.1f} s ({why})")
    return Check(
        name="no-false-deaths",
        state="fail" if false else "pass",
        text="; ".join(false[:5]) or f"{away} times away, each after a fault on that learner or the syncer",
        figures={"away": away, "false_deaths": len(false), "false": false},
    )


def rejections_are_explained(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """Contributions are refused only for what was done to them."""
    counts = {**seen.measures.rejected, **({"malformed": seen.malformed} if seen.malformed else {})}
    came = {fault.kind for fault in seen.faults if not fault.missed}
    strange = {
        reason: count
        for reason, count in counts.items()
        if reason not in ALWAYS and not (EXPLAINS.get(reason, frozenset()) & came)
    }
    shown = ", ".join(f"{count} {reason}" for reason, count in (strange or counts).items())
    return Check(
        name="rejections-are-explained",
        state="fail" if strange else "pass",
        text=(f"no fault explains {shown}" if strange else shown) or "none",
        figures={"rejected": counts, "strange": strange},
    )


def bad_learners_do_no_harm(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """Beside a learner that sends NaN, or what is far too long, the held-out loss stays finite and falls."""
    if not seen.done("nan", "scale"):
        return Check(name="bad-learners-do-no-harm", state="not applicable", text="no learner was made bad")
    losses = [e.loss for e in sorted(seen.measures.evaluations, key=lambda e: e.round)]
    well = bool(losses) and all(map(math.isfinite, losses)) and losses[-1] < losses[0]
    shown = f"held-out loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else "the model was never evaluated"
    return Check(
        name="bad-learners-do-no-harm", state="pass" if well else "fail", text=shown, figures={"losses": losses}
    )


def standby_takes_over(seen: Evidence, expect: Expectations, compare: Sequence[float]) -> Check:
    """Whenever the syncer is killed beside a standby, the next one in charge is the one that was waiting."""
    kills = seen.done("takeover")
    if not kills:
        return Check(name="standby-takes-over", state="not applicable", text="no takeover was asked for")
    wrong = []
    for kill in kills:
        heir = next((life for life in seen.syncer if life.began > kill.began), None)
        if heir is None or not heir.took_over:
            what = "nobody took over" if heir is None else "one was started that had not been waiting"
            wrong.append(f"{what} after the kill at {kill.began - seen.began:.1f} s")
    return Check(
        name="standby-takes-over",
        state="fail" if wrong else "pass",
        text="; ".join(wrong[:3]) or f"{len(kills)} times",
        figures={"takeovers": len(kills), "wrong": wrong},
    )


def explains_silence(seen: Evidence, at: float, name: str) -> bool:
    """Something was done to that learner or to the syncer, just then, after which neither need hear of the other."""

    def near(fault: Happened) -> bool:
        after_s = PING_S if fault.kind == "half-open" else seen.liveness_s
        return fault.began <= at <= fault.ended + after_s + AFTER_S

    mine = (f for f in seen.faults if not f.missed and f.who == name and f.kind in TAKES_AWAY)
    syncers = (f for f in seen.faults if not f.missed and f.who == SYNCER and f.kind in SYNCER_GONE)
    return any(map(near, mine)) or any(map(near, syncers))


INVARIANTS = (
    reaches_its_end,
    nothing_merged_is_lost,
    ledger_balances,
    never_stands_still,
    standby_takes_over,
    no_false_deaths,
    rejections_are_explained,
    bad_learners_do_no_harm,
)
