"""Processes are started with few threads, and none is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gruppetto.launch.children import Child, last_words, start, stop

STUBBORN = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
)


def run(code: str, place: Path) -> Child:
    return start("child", ["-c", code], place / "deep" / "child.log", threads=3)


@pytest.mark.parametrize(
    ("code", "state", "said"),
    [
        ("import os; print(os.environ['OMP_NUM_THREADS'], os.environ['OMP_WAIT_POLICY'])", "done", "3 PASSIVE"),
        ("import sys; print('one'); sys.exit('two')", "failed (exit 1)", "two"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed (SIGKILL)", "it said nothing"),
    ],
)
def test_how_a_child_ended_and_what_it_said(tmp_path: Path, code: str, state: str, said: str) -> None:
    child = run(code, tmp_path)
    child.process.wait()
    assert (child.state, last_words(child)) == (state, said)
    assert not child.running
    stop([child])


def test_a_child_lives_in_a_group_of_its_own(tmp_path: Path) -> None:
    child = run("import signal; signal.pause()", tmp_path)
    assert child.state == "running"
    assert os.getpgid(child.process.pid) == child.process.pid != os.getpgid(0)
    stop([child])
    assert child.state == "killed (SIGTERM)"


def test_a_child_that_does_not_leave_is_killed(tmp_path: Path) -> None:
    child = run(STUBBORN, tmp_path)
    while not (child.log.exists() and child.log.read_text(encoding="utf-8")):
        assert child.running
    stop([child], grace_s=0.1)
    assert child.state == "killed (SIGKILL)"


def test_standard_input_closes_with_the_parent(tmp_path: Path) -> None:
    child = run("import os; os.read(0, 1); print('over')", tmp_path)
    assert child.process.stdin is not None
    child.process.stdin.close()
    child.process.wait()
    assert last_words(child) == "over"
