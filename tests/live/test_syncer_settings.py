"""A syncer that is started again goes on with the run as it was, whatever its command line says nothing about."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.live.waiting import PATIENCE_S, until

from gruppetto.launch.ask import fetch_status, find_endpoint

pytestmark = pytest.mark.live


def rounds_of_a_life(state: Path, *flags: str) -> tuple[int | None, int]:
    """Start a syncer, ask it how long the run is and which life this is, stop it."""
    command = [sys.executable, "-m", "gruppetto", "syncer", "--listen", "127.0.0.1:0", "--state", str(state), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (found := find_endpoint(state)) is not None and found.pid == process.pid)
        endpoint = find_endpoint(state)
        assert endpoint is not None
        status = fetch_status(endpoint.url, token=None)
        until((state / "run.toml").exists)  # the settings are kept right after it listens
        return status["rounds"], status["epoch"]
    finally:
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 143, said


def test_settings_outlive_a_restart_and_can_be_changed_by_name(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert rounds_of_a_life(state, "--set", "run.rounds=400") == (400, 1)
    assert rounds_of_a_life(state) == (400, 2)
    assert rounds_of_a_life(state, "--set", "run.rounds=500") == (500, 3)
    assert rounds_of_a_life(state) == (500, 4)
