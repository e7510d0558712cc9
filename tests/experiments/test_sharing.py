"""Several processes that are asked for the same share the work, and whoever dies leaves its part to the others."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from gruppetto.experiments.budget import Budget
from gruppetto.experiments.claims import BEAT_S, LEASE_S, Claims, this_machine
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.runner import make_rides
from gruppetto.experiments.sharing import Asked, Shared, claims_beside, work_of
from gruppetto.experiments.store import Result, Store
from gruppetto.runtime.clock import ManualClock

RIDES = [Ride(seed=seed) for seed in range(12)]


def _ride(shared: Shared) -> Ride | None:
    taken = shared.take()
    return None if taken is None else taken.ride


def test_of_several_who_are_asked_for_the_same_each_run_is_made_by_one(tmp_path: Path) -> None:
    path, start, made = tmp_path / "x.jsonl", threading.Barrier(4), list[tuple[int, int]]()

    def process(number: int) -> None:
        store = Store(path)
        shared = Shared(work_of(RIDES, store), poll_s=0.01)
        start.wait()
        with shared.open():
            while (taken := shared.take()) is not None:
                made.append((taken.ride.seed, number))
                shared.keep(taken, {"loss": float(taken.ride.seed)}, took_s=0)
        assert all(ride in store for ride in RIDES)  # also those that others made

    threads = [threading.Thread(target=process, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(seed for seed, _ in made) == Counter(range(12))
    assert len(path.read_bytes().splitlines()) == 12 and not claims_beside(path).exists()


def test_timed_runs_are_made_one_at_a_time_on_a_machine(tmp_path: Path) -> None:
    said = list[str]()
    one = Shared(work_of(RIDES, Store(tmp_path / "x.jsonl"), alone=True))
    other = Shared(work_of(RIDES, Store(tmp_path / "x.jsonl"), alone=True), say=said.append, poll_s=0.01)
    with one.open(), other.open():
        first = one.take()
        assert first is not None and first.ride == RIDES[0]
        waiting = threading.Thread(target=lambda: said.append(f"took {_ride(other)}"), daemon=True)
        waiting.start()
        while not said:
            waiting.join(0.01)
        assert "timed, one at a time" in said[0] and "process" in said[0] and waiting.is_alive()
        one.keep(first, {"loss": 1.0}, took_s=0)
        waiting.join(60)
        assert said[1] == f"took {RIDES[1]}"


def test_nobody_is_waited_for_who_has_let_go_meanwhile(tmp_path: Path) -> None:
    said = list[str]()
    theirs, ours = Claims(tmp_path / "claims"), Claims(tmp_path / "claims")

    class Once(Claims):
        """The first ask for a ride finds it taken, and then it is let go."""

        def take(self, what: str) -> bool:
            if theirs.take(what):
                assert not ours.take(what)
                theirs.release(what)
                asked.append(what)
                return len(asked) > 2 and ours.take(what)
            return False

    asked = list[str]()
    work, once = work_of(RIDES[:2], Store(tmp_path / "x.jsonl")), Once(tmp_path / "claims")
    shared = Shared(work, claims=lambda store: once, say=said.append, poll_s=0)
    assert _ride(shared) == RIDES[0] and len(asked) == 3 and said == []


def test_the_runs_of_a_killed_process_are_taken_over_at_once(tmp_path: Path) -> None:
    store, clock = Store(tmp_path / "x.jsonl"), ManualClock()
    begin = """
import os, signal, sys
from pathlib import Path
from gruppetto.experiments.budget import Budget
from gruppetto.experiments.claims import Claims
claims = Claims(Path(sys.argv[1]))
assert claims.take(sys.argv[2])
print("taken", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", begin, str(claims_beside(store.path)), RIDES[0].hash]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"taken\n"
        ours = Claims(claims_beside(store.path), clock=clock)
        shared = Shared(work_of(RIDES[:2], store), claims=lambda store: ours)
        assert not ours.take(RIDES[0].hash) and ours.holder(RIDES[0].hash) == f"process {process.pid}"
        assert _ride(shared) == RIDES[1]
        process.kill()
    assert _ride(shared) == RIDES[0]  # and no second has passed


def test_of_another_machine_no_lock_is_believed_but_its_number_is(tmp_path: Path) -> None:
    clock = ManualClock()
    theirs = Claims(tmp_path / "claims", machine="theirs")
    ours = Claims(tmp_path / "claims", machine="ours", clock=clock)
    assert theirs.take("a") and " on " in ours.holder("a")
    for _ in range(int(3 * LEASE_S / BEAT_S)):
        assert not ours.take("a")
        clock.advance(BEAT_S)
        theirs.beat()
    assert not ours.take("a")
    clock.advance(LEASE_S - 0.1)
    assert not ours.take("a")
    clock.advance(0.2)
    assert ours.take("a") and not theirs.take("a")
    theirs.release("a")  # it was only stopped: what is ours stays
    assert not theirs.take("a") and ours.holder("a")
    ours.release("a")
    assert theirs.take("a")


def test_a_claim_that_says_nothing_is_waited_for_as_long_as_one_of_another_machine(tmp_path: Path) -> None:
    (tmp_path / "a.7").write_bytes(b"")
    clock = ManualClock()
    claims = Claims(tmp_path, clock=clock)
    assert not claims.take("a") and claims.holder("a") == "another process" and claims.holder("b") == ""
    clock.advance(LEASE_S)
    assert claims.take("a") and [path.name for path in tmp_path.iterdir()] == ["a.8"]
    assert this_machine().encode() in (tmp_path / "a.8").read_bytes()


def test_what_was_made_while_we_looked_is_not_made_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "x.jsonl")

    class Late(Claims):
        def take(self, what: str) -> bool:
            if what == RIDES[0].hash and RIDES[0] not in Store(store.path):
                Store(store.path).add(RIDES[0], {"loss": 1.0}, took_s=0)
            return super().take(what)

    shared = Shared(work_of(RIDES[:2], store), claims=lambda store: Late(claims_beside(store.path)))
    assert _ride(shared) == RIDES[1]


def test_a_run_that_fails_is_left_to_the_others(tmp_path: Path) -> None:
    def make(ride: Ride, cache: Path) -> Result:
        raise KeyboardInterrupt

    store = Store(tmp_path / "x.jsonl")
    with pytest.raises(KeyboardInterrupt):
        make_rides(work_of(RIDES, store), cache=tmp_path, make=make)
    assert Claims(claims_beside(store.path)).take(RIDES[0].hash)


def test_what_was_made_is_kept_where_nothing_can_be_claimed_any_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "x.jsonl")
    shared = Shared(work_of(RIDES[:1], store))
    with shared.open():
        taken = shared.take()
        assert taken is not None
        place = claims_beside(store.path)
        place.rename(tmp_path / "elsewhere")
        place.touch()
        shared.keep(taken, {"loss": 1.0}, took_s=0)
        assert shared.take() is None
    assert RIDES[0] in Store(store.path)


def test_a_file_in_the_place_of_claims_is_no_claim(tmp_path: Path) -> None:
    claims_beside(tmp_path / "x.jsonl").touch()
    with pytest.raises(NotADirectoryError):
        Shared(work_of(RIDES, Store(tmp_path / "x.jsonl"))).take()


def test_of_several_experiments_each_ride_goes_to_its_own_store_and_a_timed_one_is_by_itself(tmp_path: Path) -> None:
    one, two, timed = (Store(tmp_path / f"{name}.jsonl") for name in ("one", "two", "timed"))
    same = RIDES[0]
    work = [*work_of([same], one), *work_of([same], two), *work_of(RIDES[1:2], timed, alone=True)]
    work += work_of(RIDES[2:4], two)
    shared, taken = Shared(work, poll_s=0.01), list[Asked]()
    with shared.open():
        taken += [each for each in (shared.take(), shared.take()) if each is not None]
        assert taken == work[:2] and not shared.is_over()
        waiting = [threading.Thread(target=lambda: taken.extend(filter(None, [shared.take()]))) for _ in range(2)]
        for thread in waiting:
            thread.start()
        shared.keep(taken[0], {"loss": 1.0}, took_s=0)
        waiting[0].join(0.1)
        assert len(taken) == 2  # the timed one waits for the second, and those behind it wait for the timed one
        shared.keep(taken[1], {"loss": 2.0}, took_s=0)
        while len(taken) < 3:
            waiting[0].join(0.01)
        waiting[0].join(0.1)
        assert taken[2:] == work[2:3]  # and nothing beside it
        shared.keep(taken[2], {"loss": 3.0}, took_s=0)
        for thread in waiting:
            thread.join(60)
        assert taken[3:] == work[3:4] and shared.take() == work[4]
    assert [Store(store.path)[same]["loss"] for store in (one, two)] == [1.0, 2.0]
    assert RIDES[1] in Store(timed.path) and len(Store(one.path)) == 1


def test_when_time_is_up_nothing_more_is_taken_and_what_fits_is(tmp_path: Path) -> None:
    clock = ManualClock()
    long, short = (Ride(rounds=rounds, seed=seed) for rounds, seed in ((400, 1), (100, 2)))
    work = work_of([RIDES[0], long, short], Store(tmp_path / "x.jsonl"))
    shared = Shared(work, budget=Budget(100.0, clock))
    with shared.open():
        first = shared.take()
        assert first == work[0]
        clock.advance(24.0)
        shared.keep(first, {"loss": 1.0}, took_s=24.0)  # 240 rounds: the long one would take 40 s, and the short one 10
        clock.advance(50.0)
        second = shared.take()
        assert second == work[2] and shared.is_over()
        clock.advance(10.0)
        shared.keep(second, {"loss": 1.0}, took_s=10.0)
        assert shared.take() is None and shared.left() == 1
