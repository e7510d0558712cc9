"""A simulated run is told as what it is: nothing of it was measured, and nothing was trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gruppetto.report.in_short import as_duration

__all__ = ["about_simulated", "amount_of", "of_what_world", "step_of"]


def of_what_world(report: Mapping[str, Any]) -> str:
    """In a word or two, for whoever could take it for measured; "" for a run that was.

    >>> of_what_world({"world": "simulated"}), of_what_world({"world": "virtual"}), of_what_world({"world": "real"})
    ('simulated', 'in virtual time', '')
    """
    return {"simulated": "simulated", "virtual": "in virtual time"}.get(str(report.get("world")), "")


def about_simulated(report: Mapping[str, Any]) -> list[str]:
    """How a simulated run begins to be told.

    >>> told = {"what": "4 learners on 300k chips", "stride": 60, "hours": 24.0, "goodput": 0.93913, "uptime": 1.0}
    >>> report = {"simulated": told, "rounds": 1721, "training_s": 86_400.0, "learners": {}}
    >>> for line in about_simulated(report):
    ...     print(line)
    Simulated, not measured: 4 learners on 300k chips rode 1721 rounds in 24 h 0 min of virtual time, training nothing.
    Of the chips' time 93.9% went into steps, and at 100.0% of all times somebody made one.
    A step is here a stretch of up to 60 inner steps.
    >>> about_simulated({**report, "simulated": told | {"hours": None}})[0]
    'The simulation of 4 learners on 300k chips was broken off at round 1721, after 24 h 0 min of virtual time.'
    """
    told: Mapping[str, Any] = report["simulated"]
    stretch = [f"A step is here a stretch of up to {told['stride']} inner steps."] if told["stride"] > 1 else []
    if told["hours"] is None:
        after = as_duration(report["training_s"])
        where = f"at round {report['rounds']}, after {after} of virtual time"
        return [f"The simulation of {told['what']} was broken off {where}.", *stretch]
    return [
        f"Simulated, not measured: {told['what']} rode {report['rounds']} rounds in "
        f"{as_duration(3600 * told['hours'])} of virtual time, training nothing.",
        f"Of the chips' time {told['goodput']:.1%} went into steps, and at {told['uptime']:.1%} of all times somebody "
        "made one.",
        *stretch,
    ]


def step_of(report: Mapping[str, Any]) -> str:
    """What the records of a run call a step.

    >>> step_of({}), step_of({"simulated": {"stride": 60}})
    ('step', 'stretch of up to 60 steps')
    """
    stride = (report.get("simulated") or {}).get("stride", 1)
    return f"stretch of up to {stride} steps" if stride > 1 else "step"


def amount_of(report: Mapping[str, Any]) -> str:
    """What the records of a run call a token.

    >>> amount_of({}), amount_of({"simulated": {"stride": 1}})
    ('tokens', 'chip-steps')
    """
    return "chip-steps" if report.get("simulated") else "tokens"
