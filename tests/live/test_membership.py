"""Coming, leaving, coming back and being mistaken for somebody, with real processes, as a user meets it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
TOKENS_PER_STEP = 4 * 64
Make = Callable[..., Any]


def test_sigterm_loses_nothing(rig: Make) -> None:
    r = rig(start=2)
    r.syncer()
    leaver, _ = r.learner("a"), r.learner("b")
    r.until_merged("a")
    leaver.send_signal(signal.SIGTERM)
    code, _ = r.ended(leaver)
    assert code == 143
    assert r.of("a")["state"] == "left"
    r.until(lambda: r.status()["fragment_tokens"]["promised"] == 0)
    books = r.status()["fragment_tokens"]
    assert books["lost"] == 0
    # Only what was trained on top of a contribution that was on its way when the notice came.
    assert books["discarded_by"].get("left", 0) <= 2 * TOKENS_PER_STEP, books
    assert books["merged"] > 0


def test_the_notice_says_in_one_line_what_was_given(rig: Make) -> None:
    r = rig()
    r.syncer()
    leaver = r.learner("a")
    r.until_merged("a")
    leaver.send_signal(signal.SIGTERM)
    _, said = leaver.communicate()
    assert leaver.returncode == 143
    (line,) = [line for line in said.splitlines() if "left on notice" in line]
    assert "fragment-tokens" in line and line.endswith(" discarded")


def test_join_at_any_step(rig: Make) -> None:
    r = rig()
    r.syncer()
    r.learner("a")
    r.until_merged("a", 5)
    r.learner("b")
    r.until_merged("b")
    assert r.of("a")["state"] == "live"
    assert r.of("a")["incarnation"] == r.of("b")["incarnation"] == 1


def test_a_rebooted_learner_takes_its_place_again(rig: Make) -> None:
    r = rig()
    r.syncer()
    first, _ = r.learner("a"), r.learner("b")
    slot = r.until_merged("a")["slot"]
    r.kill(first)
    r.until(lambda: r.of("a")["state"] == "away")
    r.learner("a")
    again = r.until_merged("a")
    assert (again["incarnation"], again["slot"], again["state"]) == (2, slot, "live")


def test_two_processes_with_one_name(rig: Make) -> None:
    """The newer one has it; the older one ends, and says why."""
    r = rig()
    r.syncer()
    first = r.learner("a")
    r.until_merged("a")
    second = r.learner("a")
    code, said = r.ended(first)
    assert code == 2
    assert "another process has taken the name 'a'; give each process its own name" in said
    assert r.until_merged("a")["incarnation"] == 2
    assert second.poll() is None


def test_a_learner_of_an_old_run(rig: Make, tmp_path: Path) -> None:
    r = rig()
    old = r.syncer()
    learner = r.learner("a")
    r.until_merged("a")
    r.kill(old)
    r.syncer(state=tmp_path / "another run")
    code, said = r.ended(learner)
    assert code == 2
    assert "this syncer serves run" in said and "check the address" in said
    assert r.status()["learners"] == {}
