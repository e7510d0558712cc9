"""``gruppetto fuzz``"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gruppetto.chaos import Outcome, Plan, draw_plan, live, read_plan, shrink, write_plan
from gruppetto.cli.flags import print_json, read_flags
from gruppetto.errors import SettingError
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.trace.log import TraceWriter

__all__ = ["main"]

DEFAULT_S = 60.0
SAY_EVERY_S = 2.0
MAX_SHRUNK = 5
"""Kinds of failure that are made small in one run; more are only counted."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Try to break the protocol: random faults in virtual time, judged by invariants. Exit 1 when one breaks.

    Every seed is a small world with a plan of faults, and the same seed gives the same history. A failing plan is made
    as small as possible and written to a file; --plan lives through it again.
    """

    seconds: float | None = None
    """Go on for so long. The default, if no seeds are counted, is 60."""
    seeds: int | None = None
    """Go on for so many seeds."""
    first: int = 0
    """The first seed."""
    seed: int | None = None
    """This seed alone, and its plan in words."""
    plan: Path | None = None
    """Live through a plan from a file."""
    out: Path = Path("runs/fuzz")
    """Where failing plans are written."""
    trace: Path | None = None
    """With --seed or --plan: record every event and decision here, for gruppetto replay."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "fuzz")
    one = _one_plan(flags)
    if one is None and flags.trace is not None:
        raise SettingError("--trace without a single plan", where="gruppetto fuzz", fix="add --seed N or --plan FILE")
    if one is not None and not flags.json:
        print(one)
    clock = MonotonicClock()
    began = said = clock.now()
    seeds = events = failures = 0
    found: dict[str, dict[str, object]] = {}
    for outcome in _outcomes(flags, one, clock):
        seeds, events = seeds + 1, events + outcome.events
        if outcome.broken:
            failures += 1
            if outcome.broken not in found and len(found) < MAX_SHRUNK:
                found[outcome.broken] = _report(outcome, flags.out, is_given=flags.plan is not None)
        if clock.now() >= said + SAY_EVERY_S:
            said = clock.now()
            _say(f"{seeds:,} seeds, {events:,} events, {failures} failures")
    seconds = max(clock.now() - began, 1e-9)
    if flags.json:
        figures = {"seeds": seeds, "failures": failures, "events_per_s": events / seconds, "events": events}
        print_json({**figures, "seconds": seconds, "found": list(found.values())})
    else:
        print(
            f"{seeds:,} seeds in {seconds:.1f} s, {events:,} events ({events / seconds:,.0f} a second): "
            + (f"{failures} failures" if failures else "nothing is wrong")
        )
    return 1 if failures else 0


def _one_plan(flags: Flags) -> Plan | None:
    if flags.plan is not None and flags.seed is not None:
        raise SettingError("--seed and --plan", where="gruppetto fuzz", fix="give one of the two")
    if flags.plan is not None:
        return read_plan(flags.plan)
    return None if flags.seed is None else draw_plan(flags.seed)


def _outcomes(flags: Flags, one: Plan | None, clock: MonotonicClock) -> Iterator[Outcome]:
    if one is not None:
        if flags.trace is None:
            yield live(one)
        else:
            with TraceWriter(flags.trace, {"fuzz": str(one)}) as trace:
                yield live(one, trace=trace)
        return
    limit_s = flags.seconds if flags.seconds is not None or flags.seeds is not None else DEFAULT_S
    deadline = float("inf") if limit_s is None else clock.now() + limit_s
    for seed in itertools.islice(itertools.count(flags.first), flags.seeds):
        if clock.now() >= deadline:
            return
        yield live(draw_plan(seed))


def _report(outcome: Outcome, out: Path, *, is_given: bool) -> dict[str, object]:
    """Say what was found, make it small, and keep it."""
    _say(f"seed {outcome.plan.seed}: {outcome.what}")
    small = shrink(outcome.plan)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{outcome.broken}-{outcome.plan.seed}.json"
    write_plan(small.plan, path)
    again = f"gruppetto fuzz --plan {path}"
    _say(f"made small in {small.tries} tries:\n{small.plan}\n{small.outcome.what}\nonce more: {again}")
    if not is_given:
        _say(f"as it was found: gruppetto fuzz --seed {outcome.plan.seed}")
    return {
        "seed": outcome.plan.seed,
        "broken": outcome.broken,
        "what": outcome.what,
        "at_s": outcome.at_s,
        "plan": str(path),
        "again": again,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
