"""The alarms of a run as the page shows them. The only place here that knows where alarms come from."""

from __future__ import annotations

from typing import Any

from gruppetto.dashboard.picture import Picture
from gruppetto.dashboard.seen import Raised
from gruppetto.report.alarms import lasts

__all__ = ["alarms_of"]

NEWEST = 20


def alarms_of(picture: Picture) -> list[dict[str, Any]]:
    """Newest first, those that hold, and of those that are over the last of each kind, with how many of that kind there
    have been (``count``): when, which kind, the cause and what to do in plain words.

    A trace says when an alarm is raised, and when it is over; ``over_t`` is None while it holds. One that tells of
    something that has happened is over as it is said, and ``lasts`` is false.
    """
    rows: list[dict[str, Any]] = []
    shown: set[str] = set()
    for alarm in reversed(picture.alarms):
        row = _row(alarm, picture.alarms_said[alarm.kind])
        if row["over_t"] is None or alarm.kind not in shown:
            rows.append(row)
        shown.add(alarm.kind)
    return rows[:NEWEST]


def _row(alarm: Raised, count: int) -> dict[str, Any]:
    stays = lasts({"kind": alarm.kind})
    over_t = alarm.over_t if stays else alarm.t
    return {"t": alarm.t, "kind": alarm.kind, "text": alarm.text, "over_t": over_t, "lasts": stays, "count": count}
