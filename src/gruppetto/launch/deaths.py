"""A note of every process that died while it was needed, for the report: the trace of a run has one writer.

The notes lie beside the trace while the run goes on, as the evaluations do, and are put into it at the end.
"""

from __future__ import annotations

import signal
from pathlib import Path

from gruppetto.launch.children import NODE_LOST
from gruppetto.report.rundir import DEATHS
from gruppetto.runtime.clock import wall_time_s
from gruppetto.trace.log import TraceWriter

__all__ = ["cause_of", "note_death"]


def cause_of(code: int) -> str:
    """What ended a process, by its exit code.

    >>> cause_of(-9), cause_of(1), cause_of(NODE_LOST)
    ('SIGKILL', 'exit 1', 'its node is gone')
    """
    if code == NODE_LOST:
        return "its node is gone"
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit {code}"


def note_death(directory: Path, now: float, name: str, code: int) -> None:
    """Keep that the process ``name`` has been seen dead. Raises OSError or :class:`StateError` if it cannot be kept."""
    with TraceWriter(directory / DEATHS, {"notes": "deaths"}) as notes:
        notes.note(now, "launcher", "died", learner=name, cause=cause_of(code), wall_s=wall_time_s())
