"""Deaths in a run: who, when, why, and how long it took until its work was merged again."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gruppetto.trace.measures import Death, Measures

__all__ = ["about_deaths", "deaths_of", "is_of_a_death"]

SYNCER, STANDBY = "syncer", "standby"
_SHARD = re.compile(rf"({SYNCER}|{STANDBY})-\d+")
"""What serves the fragments of another shard than the first: see :mod:`gruppetto.launch.shards`."""


def deaths_of(found: Measures) -> list[dict[str, Any]]:
    """For ``report.json``: process, cause, seconds since the run began, the newest round then, seconds until a round
    was closed that holds its work (for the syncer: any round). What is not known is None."""
    return [_death(found, death) for death in sorted(found.deaths, key=lambda death: death.wall_s)]


def _death(found: Measures, death: Death) -> dict[str, Any]:
    at = found.since_it_began(death)
    rounds = [r for r in _of(found, death.process).rounds.values() if r.due]
    before = [] if at is None else [r.round for r in rounds if r.closed_at <= at]
    return {
        "process": death.process,
        "cause": death.cause,
        "t": at,
        "round": max(before, default=None),
        "merged_again_s": None if at is None else _merged_again_s(found, death.process, at),
    }


def _merged_again_s(found: Measures, process: str, at: float) -> float | None:
    """What a learner gave before it died may be merged after: its new life counts from its return."""
    since, serves = at, process == SYNCER or _is_shard(found, process)
    if not serves:
        learner = found.learners.get(process)
        returns = [t for t, state in learner.states if state == "live" and t > at] if learner is not None else []
        since = min(returns, default=math.inf)
    rounds = _of(found, process).rounds.values()
    closed = [r.closed_at for r in rounds if r.due and (serves or process in r.participants)]
    return min((t - at for t in closed if t > since), default=None)


def _is_shard(found: Measures, process: str) -> bool:
    """A syncer of its own, of which there is a trace; or a standby of it, which serves nobody."""
    return _SHARD.fullmatch(process) is not None and process not in found.learners and process.startswith(SYNCER)


def _of(found: Measures, process: str) -> Measures:
    """The rounds that a process has to do with: of a shard those of its own fragments, of a learner all."""
    number = "1" if process == SYNCER else process.rpartition("-")[2] if _is_shard(found, process) else ""
    return next((each for each in found.shards if each.shard.partition("/")[0] == number), found)


def is_of_a_death(recovery: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """Whether a recovery is told with the death that it followed."""
    return recovery["cause"] == "killed" and any(d["process"] == recovery["learner"] for d in report["deaths"])


def _sources(report: Mapping[str, Any]) -> Mapping[str, Iterator[str]]:
    """By learner: where each of its new lives had its state from, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for recovery in report.get("recoveries", ()):
        if is_of_a_death(recovery, report):
            found[recovery["learner"]].append(recovery["source"])
    return defaultdict(lambda: iter(()), {name: iter(sources) for name, sources in found.items()})


def about_deaths(report: Mapping[str, Any]) -> list[str]:
    """A sentence on each death, for the end of a terminal session."""
    lines = []
    lost_by: Mapping[str, int] = report["lost_fragment_tokens"]
    dead = {death["process"] for death in report["deaths"]}
    sources = _sources(report)
    for death in report["deaths"]:
        when = f" {death['t']:.1f} s into the run" if death["t"] is not None else ""
        where = f", at round {death['round']}" if death["round"] is not None else ""
        back = death["merged_again_s"]
        if death["process"] == SYNCER:
            after = f"{back:.1f} s later it closed the next round" if back is not None else "it closed no round after"
        elif death["process"] == STANDBY:
            after = "no round was in need of it"
        elif _SHARD.fullmatch(death["process"]) and death["process"] not in report.get("learners", {}):
            after = "only its own fragments waited for it, in rounds of their own"
            after += f", of which it closed the next {back:.1f} s later" if back is not None else ""
        else:
            after = f"{back:.1f} s later its work was merged again" if back is not None else "it was not merged again"
            source = next(sources[death["process"]], "") if back is not None else ""
            after += f", with its state from: {source}" if source else ""
        lines.append(f"{death['process']} died ({death['cause']}){when}{where}; {after}.")
    if lines:
        others = sorted(set(lost_by) - dead)
        lines[-1] = lines[-1][:-1] + (
            f"; {', '.join(others)} lost work too." if others else "; the others lost nothing."
        )
    return lines
