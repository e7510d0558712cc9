"""The alarms of a run as the page shows them. The only place here that knows where alarms come from."""

from __future__ import annotations

from typing import Any

from gruppetto.dashboard.picture import Picture

__all__ = ["alarms_of"]

NEWEST = 20


def alarms_of(picture: Picture) -> list[dict[str, Any]]:
    """The newest ones, newest first: when, which kind, the cause and what to do in plain words.

    A trace says when an alarm is raised, and some say when it is over; ``over_t`` is None if it does not.
    """
    newest = list(picture.alarms)[-NEWEST:]
    return [{"t": a.t, "kind": a.kind, "text": a.text, "over_t": a.over_t} for a in reversed(newest)]
