"""Alarms as lines for people: since when one holds, or since when it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.report.story import as_duration

__all__ = ["alarm_lines", "alarm_span", "holds", "lasts"]


def holds(alarm: Mapping[str, Any]) -> bool:
    """Whether an alarm of a status, or of a report, has not been withdrawn."""
    return alarm.get("over_t") is None


def alarm_lines(alarms: Iterable[Mapping[str, Any]], now: float, *, ended: bool = False) -> list[str]:
    """Lines for the alarms of a syncer's status, by the names under which docs/alarms.md has them: one for each that
    holds, and of those that are over one for each kind, the last. ``now`` is its ``uptime_s``; with the run that has
    ``ended`` those are over too that held until then.

    >>> short = {"t": 3.0, "kind": "quorum-short", "text": "round 7 waits.", "over_t": None}
    >>> gone = {"t": 1.0, "kind": "went-back", "text": "rounds 3 to 4 may be lost.", "over_t": 1.0}
    >>> for line in alarm_lines([gone, short | {"over_t": 5.0}, short | {"over_t": 8.0}, short], now=13.0):
    ...     print(line)
    ! went-back, 12.0 s ago: rounds 3 to 4 may be lost.
    over for 5.0 s: quorum-short, after 5.0 s, the last of 2: round 7 waits.
    ! quorum-short, for 10.0 s: round 7 waits.
    >>> alarm_lines([short], now=13.0, ended=True)
    ['over with the run: quorum-short, after 10.0 s: round 7 waits.']
    """
    seen = list(alarms)
    over = Counter(str(alarm["kind"]) for alarm in seen if _is_over(alarm))
    last = {str(alarm["kind"]): at for at, alarm in enumerate(seen) if _is_over(alarm)}
    return [
        _line(alarm, now, over[str(alarm["kind"])], ended=ended)
        for at, alarm in enumerate(seen)
        if not _is_over(alarm) or last[str(alarm["kind"])] == at
    ]


def _is_over(alarm: Mapping[str, Any]) -> bool:
    """It held, and no longer does."""
    return not holds(alarm) and lasts(alarm)


def _line(alarm: Mapping[str, Any], now: float, count: int, *, ended: bool) -> str:
    if holds(alarm) and ended:
        return f"over with the run: {alarm['kind']}, after {as_duration(now - alarm['t'])}: {alarm['text']}"
    if not _is_over(alarm):
        when = f"for {as_duration(now - alarm['t'])}" if holds(alarm) else f"{as_duration(now - alarm['t'])} ago"
        return f"! {alarm['kind']}, {when}: {alarm['text']}"
    held = f"after {as_duration(alarm['over_t'] - alarm['t'])}" + (f", the last of {count}" if count > 1 else "")
    return f"over for {as_duration(now - alarm['over_t'])}: {alarm['kind']}, {held}: {alarm['text']}"


def alarm_span(alarm: Mapping[str, Any]) -> str:
    """When an alarm of a report held.

    >>> alarm_span({"t": 3.0, "kind": "quorum-short", "over_t": 62.0})
    '3 s to 62 s'
    """
    if holds(alarm):
        return f"{alarm['t']:.0f} s to the end"
    return f"{alarm['t']:.0f} s to {alarm['over_t']:.0f} s" if lasts(alarm) else f"{alarm['t']:.0f} s"


def lasts(alarm: Mapping[str, Any]) -> bool:
    """Whether alarms of its kind hold until their cause has gone. One that is not known here does: another version may
    have said it."""
    kinds = {kind.value: row.lasts for kind, row in ALARMS.items()}
    return kinds.get(str(alarm["kind"]), True)
