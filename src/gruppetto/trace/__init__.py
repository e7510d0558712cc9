"""What happened, as one versioned log for every world: written by runs, read by metrics, reports and replay.

Read :mod:`~gruppetto.trace.schema` (what a line is), :mod:`~gruppetto.trace.log` (writing and reading),
:mod:`~gruppetto.trace.replay` (the same events lead to the same decisions), :mod:`~gruppetto.trace.measures` (what the
figures of a run mean) and :mod:`~gruppetto.trace.metrics` (all of them, from the trace alone).
"""

from __future__ import annotations

from gruppetto.trace.log import Header, Record, TraceWriter, read_trace
from gruppetto.trace.schema import core_header

__all__ = ["Header", "Record", "TraceWriter", "core_header", "read_trace"]
