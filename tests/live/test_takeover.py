"""A syncer is killed, or stopped and let go on, again and again, while three learners train beside a standby."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "syncer_kills.py"


def found(*flags: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(EXPERIMENT), "--json", *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.alone
@pytest.mark.parametrize(("by", "tls"), [("standby", ("--tls",)), ("restart", ())])
def test_a_killed_syncer_loses_no_round_and_stops_no_learner(by: str, tls: tuple[str, ...]) -> None:
    result = found("--kills", "3", "--by", by, *tls)
    assert result["lives"] == 4
    assert (result["rounds_lost"], result["versions_that_fell"]) == (0, 0)
    assert result["longest_step_s"] < 2.0, "nobody waited for the syncer, which was away for longer in all"


def test_a_stopped_syncer_is_taken_over_from_and_steps_down_when_it_wakes_up() -> None:
    result = found("--kills", "2", "--how", "stop")
    assert result["lives"] == 3 and result["versions_that_fell"] == 0
    assert [each["exit_code"] for each in result["each"]] == [3, 3]
    assert all(each["back_s"] > 2.0 for each in result["each"]), "only after its lease"


def test_with_commits_now_and_then_what_is_lost_is_known() -> None:
    result = found("--kills", "2", "--durability", "interval")
    assert result["rounds_lost"] <= 2 * 7 and result["versions_that_fell"] == 0
