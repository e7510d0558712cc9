"""``report.json``: the figures of a run under the names that scripts rely on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from gruppetto.report.deaths import deaths_of
from gruppetto.trace.measures import Evaluated, LearnerMeasures, Measures, Recovery, RoundMeasures

__all__ = ["REPORT_VERSION", "summary_of_rival", "summary_of_run"]

REPORT_VERSION = 1
FP32_BYTES = 4
NOT_RECORDED = "not recorded"
"""What a check says that had nothing to compare."""


def summary_of_run(found: Measures) -> dict[str, Any]:
    """The report of a decoupled run. What the trace does not tell is null.

    Seconds, bytes, tokens and shares in 0…1; the definitions stand in :mod:`gruppetto.trace.measures`. ``quorum``
    counts the learners merged in a round, ``grace`` the seconds that rounds spent waiting for more answers than they
    needed. ``world``: real, virtual (real tensors, whose seconds are virtual) or simulated (rates alone). Of a
    simulated run ``simulated`` has what its chips made of their time, tokens are steps times chips, and a learner's
    steps are of up to ``stride`` inner ones. ``shards``: of a run with several traces, what each shard made of its own
    fragments, whose tokens are consumed by all of them; rounds are then those that all have made.
    """
    rounds = list(found.rounds.values())
    due = [r for r in rounds if r.due]
    start, end = found.window
    return {
        "version": REPORT_VERSION,
        "mode": "decoupled",
        "world": found.world,
        "simulated": None if found.simulated is None else asdict(found.simulated),
        "finished": found.ended_at is not None,
        "rounds": found.newest_round,
        "wall_s": _tidy(found.wall_s),
        "training_s": _tidy(end - start),
        "goodput": _tidy(found.goodput),
        "uptime": _tidy(found.uptime),
        "participation": _tidy(found.participation),
        "live": _tidy(_mean([r.live for r in due])),
        "tokens": _fates(found),
        "discarded_fragment_tokens": found.discarded_by,
        "bytes": _bytes(found),
        "eval": _eval(found.evaluations),
        "rejected": found.rejected,
        "clipped": found.clipped,
        "recoveries": [_recovery(recovery) for recovery in found.recoveries],
        "deaths": [
            {**death, "t": _tidy(death["t"]), "merged_again_s": _tidy(death["merged_again_s"])}
            for death in deaths_of(found)
        ],
        "lost_fragment_tokens": found.lost_by,
        "grace": {
            "mean_s": _tidy(_mean([r.grace_spent_s for r in due])),
            "max_s": _tidy(max((r.grace_spent_s for r in due), default=None)),
        },
        "quorum": {
            "mean": _tidy(_mean([len(r.participants) for r in due])),
            "min": min((len(r.participants) for r in due), default=None),
        },
        "anatomy": _anatomy(due),
        "learners": {name: _learner(found, name, found.learners[name]) for name in sorted(found.learners)},
        "alarms": [
            {"t": _tidy(said.t), "kind": said.kind, "text": said.text, "over_t": _tidy(said.over_t)}
            for said in found.alarms
        ],
        "checks": _checks(found),
        "shards": [_shard(each) for each in found.shards],
    }


def summary_of_rival(
    records: Sequence[Mapping[str, Any]], *, mode: str, tokens_per_step: int, world: str = "real"
) -> dict[str, Any]:
    """The report of a rival (``single``, ``data-parallel``, ``diloco``) from its training log, under the same names.

    Its learners move together, so every token they train on is merged; what has no meaning for it is null.
    """
    evaluations = [
        Evaluated(round=r["round"], loss=_number(r["loss"]), perplexity=_number(r.get("perplexity")))
        for r in records
        if r["kind"] in ("eval", "end")
    ]
    rounds = max((r["round"] for r in records), default=0)
    names = sorted({r["who"] for r in records if r["kind"] == "train"})
    consumed = rounds * tokens_per_step * len(names)
    wall_s = max((float(r["t"]) for r in records), default=0.0)
    return {
        "version": REPORT_VERSION,
        "mode": mode,
        "world": world,
        "simulated": None,
        "finished": any(r["kind"] == "end" for r in records),
        "rounds": rounds,
        "wall_s": wall_s,
        "training_s": wall_s,
        "goodput": None,
        "uptime": None,
        "participation": 1.0,
        "live": float(len(names)),
        "tokens": {"consumed": consumed, "merged": consumed, "discarded": 0, "lost": 0},
        "bytes": {"up": None, "down": None, "data_parallel_equivalent": None},
        "eval": _eval(evaluations),
        "rejected": {},
        "clipped": {},
        "recoveries": [],
        "grace": {"mean_s": None, "max_s": None},
        "quorum": {"mean": float(len(names)), "min": len(names)},
        "learners": {
            name: {
                "steps": rounds,
                "tokens": rounds * tokens_per_step,
                "merged_rounds": rounds,
                "step_s": _tidy(wall_s / rounds) if rounds else None,
            }
            for name in names
        },
        "alarms": [],
    }


def data_parallel_bytes(numel: int | None, steps: Sequence[int]) -> int | None:
    """What data parallel sends for the same steps: a ring all-reduce of float32 gradients at each one.

    In a ring each of M learners sends 2·(M − 1)/M of the gradients, so all together 2·(M − 1)·4·N bytes a step.

    >>> data_parallel_bytes(1000, [10, 10])
    80000
    """
    if numel is None or not steps:
        return None
    return round(2 * (len(steps) - 1) / len(steps) * FP32_BYTES * numel * sum(steps))


def _fates(found: Measures) -> dict[str, int]:
    fates = {fate: found.tokens.get(fate, 0) for fate in ("consumed", "merged", "discarded", "lost")}
    return fates | {fate: found.tokens[fate] for fate in ("promised", "open") if found.tokens.get(fate)}


def _shard(found: Measures) -> dict[str, Any]:
    """Of one of several shards: its fragments, and what became of the tokens in them."""
    return {
        "shard": found.shard,
        "finished": found.ended_at is not None,
        "rounds": found.newest_round,
        "fragments": found.num_fragments,
        "numel": found.header.get("numel"),
        "participation": _tidy(found.participation),
        "tokens": _fates(found),
        "bytes": {"up": found.up_bytes, "down": found.down_bytes},
        "rejected": found.rejected,
        "clipped": found.clipped,
        "merged_rounds": {name: found.learners[name].merged_rounds for name in sorted(found.learners)},
    }


def _bytes(found: Measures) -> dict[str, Any]:
    steps = [learner.steps for learner in found.learners.values()]
    equivalent = data_parallel_bytes(found.header.get("numel"), steps)
    return {"up": found.up_bytes, "down": found.down_bytes, "data_parallel_equivalent": equivalent}


def _recovery(of: Recovery) -> dict[str, Any]:
    return {
        "learner": of.learner,
        "cause": of.cause,
        "source": of.source,
        "seconds": _tidy(of.seconds),
        "search_s": _tidy(of.search_s),
        "payload_bytes": of.payload_bytes,
    }


def _eval(evaluations: Sequence[Evaluated]) -> dict[str, Any]:
    if not evaluations:
        return {"initial_loss": None, "loss": None, "perplexity": None, "curve": []}
    ordered = sorted(evaluations, key=lambda e: e.round)
    last = ordered[-1]
    return {
        # Without an evaluation of round 0 the initial loss is not known.
        "initial_loss": _tidy(ordered[0].loss) if ordered[0].round == 0 else None,
        "loss": _tidy(last.loss),
        "perplexity": _tidy(last.perplexity),
        "round": last.round,
        "curve": [[e.round, _tidy(e.loss)] for e in ordered],
    }


def _anatomy(rounds: Sequence[RoundMeasures]) -> dict[str, Any]:
    """The mean seconds of each phase of a round."""
    phases = ("quorum_s", "grace_spent_s", "merge_s", "persist_s", "publish_s")
    return {phase: _tidy(_mean([getattr(r, phase) for r in rounds])) for phase in phases}


def _learner(found: Measures, name: str, learner: LearnerMeasures) -> dict[str, Any]:
    return {
        "steps": learner.steps,
        "tokens": found.consumed_by.get(name, 0),
        "merged_rounds": learner.merged_rounds,
        "step_s": _tidy(learner.step_s),
        "lives": learner.lives,
        "state": learner.states[-1][1] if learner.states else None,
    }


def _checks(found: Measures) -> dict[str, Any]:
    """What the trace was tested for, and "ok" or what was found instead; of several traces, in any of them."""
    if found.shards:
        each = {shard.shard: _checks(shard) for shard in found.shards}
        return {check: _found_in(each, check) for check in next(iter(each.values()))}
    replayed, recorded = found.replay, found.recorded_tokens
    difference = replayed.first_difference if replayed is not None else None
    if recorded is None:
        agrees = NOT_RECORDED
    elif recorded == found.tokens:
        agrees = "ok"
    else:
        agrees = f"the run's own ledger says {recorded}, the replayed one {found.tokens}"
    return {
        "replay": str(difference) if difference is not None else "ok",
        "ledger_balances": "ok" if found.balanced else "consumed is not merged + discarded + lost + open",
        "ledger_agrees": agrees,
    }


def _found_in(each: Mapping[str, Mapping[str, Any]], check: str) -> str:
    found = {shard: str(checks[check]) for shard, checks in each.items()}
    wrong = [f"shard {shard}: {what}" for shard, what in found.items() if what not in ("ok", NOT_RECORDED)]
    return "; ".join(wrong) or (NOT_RECORDED if NOT_RECORDED in found.values() else "ok")


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _tidy(value: float | None) -> float | None:
    """Seven digits are more than anybody reads; JSON has no infinity."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None
