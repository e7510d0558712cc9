"""Waiting for what processes come to: for the state itself, and generously, for slow cores may have others to carry."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gruppetto.cli.status import status_of_directory
from gruppetto.errors import GruppettoError
from gruppetto.launch.papers import looker_papers_in
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["PATIENCE_S", "POLL_S", "status_of", "until", "until_round"]

PATIENCE_S = 240.0
"""Far beyond anything that is waited for."""
POLL_S = 0.05


def until(fine: Callable[[], bool], told: Callable[[], object] = lambda: None) -> None:
    """Wait for it, at most :data:`PATIENCE_S`; what ``told`` gives is shown if it does not come."""
    clock = MonotonicClock()
    while not fine():
        assert clock.now() < PATIENCE_S, told()
        time.sleep(POLL_S)


def status_of(run: Path) -> dict[str, Any]:
    """What ``gruppetto status`` says of a run directory, without a process for every look; nothing before a run is
    there."""
    try:
        papers = looker_papers_in(run, None, None)
        return status_of_directory(run, token=papers.token, tls=papers.tls)
    except GruppettoError:
        return {}


def until_round(run: Path, round: int, train: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a run that ``train`` has started to get so far; its status then."""
    found: dict[str, Any] = {}

    def far_enough() -> bool:
        found.update(status_of(run))
        assert train.poll() is None, f"the run ended early: {train.communicate()}"
        return bool(found.get("round", 0) >= round)

    until(far_enough, lambda: found)
    return found
