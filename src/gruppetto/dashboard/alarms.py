"""The alarms of a run as the page shows them. The only place here that knows where alarms come from."""

from __future__ import annotations

from typing import Any

from gruppetto.dashboard.picture import Picture

__all__ = ["alarms_of"]

NEWEST = 20


def alarms_of(picture: Picture) -> list[dict[str, Any]]:
    """The newest ones, newest first: when, which kind, the cause and what to do in plain words.

    A trace says when an alarm is raised, each once until its cause has gone.
    """
    raised = [h for h in picture.happenings.within(0.0, picture.now) if h.kind == "alarm"]
    return [{"t": h.t, "kind": h.who, "text": h.text} for h in reversed(raised[-NEWEST:])]
