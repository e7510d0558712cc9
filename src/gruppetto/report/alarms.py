"""Alarms as lines for people: since when one holds, or since when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gruppetto.protocol.alarm_table import ALARMS
from gruppetto.report.story import as_duration

__all__ = ["alarm_lines", "alarm_span", "holds", "lasts"]


def holds(alarm: Mapping[str, Any]) -> bool:
    """Whether an alarm of a status, or of a report, has not been withdrawn."""
    return alarm.get("over_t") is None


def alarm_lines(alarms: Iterable[Mapping[str, Any]], now: float) -> list[str]:
    """One line for each alarm of a syncer's status; ``now`` is its ``uptime_s``.

    >>> short = {"t": 3.0, "kind": "quorum-short", "text": "round 7 waits.", "over_t": None}
    >>> gone = {"t": 1.0, "kind": "went-back", "text": "rounds 3 to 4 may be lost.", "over_t": 1.0}
    >>> alarm_lines([gone, short, short | {"over_t": 8.0}], now=13.0)  # doctest: +NORMALIZE_WHITESPACE
    ['! 12.0 s ago: rounds 3 to 4 may be lost.', '! for 10.0 s: round 7 waits.',
     'over since 5.0 s, after 5.0 s: round 7 waits.']
    """
    return [_line(alarm, now) for alarm in alarms]


def _line(alarm: Mapping[str, Any], now: float) -> str:
    if holds(alarm):
        return f"! for {as_duration(now - alarm['t'])}: {alarm['text']}"
    if not lasts(alarm):
        return f"! {as_duration(now - alarm['t'])} ago: {alarm['text']}"
    held_s = alarm["over_t"] - alarm["t"]
    return f"over since {as_duration(now - alarm['over_t'])}, after {as_duration(held_s)}: {alarm['text']}"


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
