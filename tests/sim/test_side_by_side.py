"""Several processes simulate; when the one that asked has had enough, none of them goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from gruppetto.errors import RunFailed
from gruppetto.sim.side_by_side import side_by_side


def _endless(name: str, *, passed: Callable[[float], None]) -> int:
    passed(float(os.getpid()))
    while True:
        signal.pause()


def _bad(name: str, *, passed: Callable[[float], None]) -> int:
    if name == "bad":
        raise ValueError("bad")
    passed(0.0)
    return len(name)


def _killed(name: str, *, passed: Callable[[float], None]) -> int:
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


class _EnoughError(Exception):
    pass


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_whoever_has_had_enough_does_not_wait_for_rows_that_nobody_wants() -> None:
    workers: set[int] = set()

    def passed(job: int, now_s: float) -> None:
        workers.add(int(now_s))
        if len(workers) == 2:
            raise _EnoughError

    jobs = [(str(n),) for n in range(9)]
    with pytest.raises(_EnoughError):
        side_by_side(_endless, jobs, processes=2, done=lambda job, outcome: None, passed=passed)
    assert len(workers) == 2 and all(map(_gone, workers))


def test_outcomes_come_in_the_order_of_the_jobs_and_an_error_is_raised() -> None:
    done: list[tuple[int, int]] = []

    def ask(jobs: list[tuple[str]]) -> list[int]:
        return side_by_side(_bad, jobs, processes=1, done=lambda *one: done.append(one), passed=lambda job, now_s: None)

    assert ask([("abc",), ("a",)]) == [3, 1] and sorted(done) == [(0, 3), (1, 1)]
    with pytest.raises(ValueError, match="bad"):
        ask([("bad",), ("a",)])


def test_a_process_that_is_killed_ends_the_others_and_is_said_in_one_line() -> None:
    with pytest.raises(RunFailed, match="was killed; where memory"):
        side_by_side(
            _killed,
            [("endless",), ("killed",), ("waits",)],
            processes=2,
            done=lambda job, outcome: None,
            passed=lambda job, now_s: None,
        )
