"""What a run was: its figures as JSON, as pictures, as a page, and in a few sentences.

Read :mod:`~gruppetto.report.summary` (report.json), :mod:`~gruppetto.report.story` (plain text),
:mod:`~gruppetto.report.figures` and :mod:`~gruppetto.report.page` (report.html), :mod:`~gruppetto.report.rundir` (all
of it, for a run directory).
"""

from __future__ import annotations

from gruppetto.report.rundir import write_report

__all__ = ["write_report"]
