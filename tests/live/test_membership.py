"""Coming, leaving, coming back and being mistaken for somebody, with real processes, as a user meets it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live.waiting import PATIENCE_S

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
TOKENS_PER_STEP = 4 * 64
Make = Callable[..., Any]


def test_sigterm_loses_nothing_and_says_in_one_line_what_was_given(rig: Make) -> None:
    r = rig(start=2)
    r.syncer()
    leaver, _ = r.learner("a"), r.learner("b")
    r.until_merged("a")
    leaver.send_signal(signal.SIGTERM)
    _, said = leaver.communicate(timeout=PATIENCE_S)
    assert leaver.returncode == 143
    (line,) = [line for line in said.splitlines() if "left on notice" in line]
    assert "fragment-tokens" in line and line.endswith(" discarded")
    r.until(lambda: r.of("a")["state"] == "left")
    r.until(lambda: r.status().get("fragment_tokens", {}).get("promised") == 0)
    books = r.status()["fragment_tokens"]
    assert books["lost"] == 0
    # Only what was trained on top of a contribution that was on its way when the notice came.
    assert books["discarded_by"].get("left", 0) <= 2 * TOKENS_PER_STEP, books
    assert books["merged"] > 0


def test_who_comes_late_comes_back_is_two_or_meets_another_run(rig: Make, tmp_path: Path) -> None:
    r = rig()
    old = r.syncer()
    first = r.learner("a")
    slot = r.until_merged("a", 5)["slot"]

    # Joined at any step.
    second = r.learner("b")
    assert r.until_merged("b")["state"] == "live"
    assert r.of("a")["state"] == "live"
    assert r.of("a")["incarnation"] == r.of("b")["incarnation"] == 1

    # Rebooted, it takes its place again.
    r.kill(first)
    r.until(lambda: r.of("a")["state"] == "away")
    first = r.learner("a")
    r.until(lambda: r.of("a")["incarnation"] == 2)
    again = r.until_merged("a")
    assert (again["incarnation"], again["slot"], again["state"]) == (2, slot, "live")

    # Of two processes with one name the newer one has it; the older one ends, and says why.
    newer = r.learner("b")
    code, said = r.ended(second)
    assert code == 2
    assert "another process has taken the name 'b'; give each process its own name" in said
    assert r.until_merged("b")["incarnation"] == 2
    assert newer.poll() is None

    # Another run at the same address is none of theirs.
    r.kill(old)
    r.syncer(state=tmp_path / "another run")
    for learner in (first, newer):
        code, said = r.ended(learner)
        assert code == 2
        assert "this syncer serves run" in said and "check the address" in said
    assert r.status()["learners"] == {}
