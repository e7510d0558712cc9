"""Whatever ends a run, what was made is kept, and only the rest is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.errors import RunFailed
from gruppetto.experiments.budget import Budget
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.runner import by_children, make_rides
from gruppetto.experiments.sharing import work_of
from gruppetto.experiments.store import Result, Store
from gruppetto.runtime.clock import ManualClock

RIDES = [Ride(seed=seed) for seed in range(5)]


class Maker:
    """Makes rides until it is interrupted."""

    def __init__(self, until: int = 99) -> None:
        self.made: list[int] = []
        self._until = until

    def __call__(self, ride: Ride, cache: Path) -> Result:
        if len(self.made) == self._until:
            raise KeyboardInterrupt
        self.made.append(ride.seed)
        return {"loss": float(ride.seed)}


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first, said = Maker(until=2), list[str]()
    with pytest.raises(KeyboardInterrupt):
        make_rides(work_of(RIDES, Store(tmp_path / "x.jsonl")), cache=tmp_path, make=first, say=said.append)
    assert first.made == [0, 1] and said[0] == "5 runs to make, 1 at a time"
    then, said = Maker(), []
    make_rides(work_of(RIDES, Store(tmp_path / "x.jsonl")), cache=tmp_path, make=then, say=said.append)
    assert then.made == [2, 3, 4] and said[0].endswith("2 of 5 are there already")
    assert said[-1].startswith("3/3, 0 s left: seed=4, loss 4.000")
    never = Maker(until=0)
    make_rides(work_of(RIDES, Store(tmp_path / "x.jsonl")), cache=tmp_path, make=never)
    assert never.made == []


def test_children_make_the_same_and_one_that_dies_is_told(tmp_path: Path, short: Ride, cache: Path) -> None:
    asked = short.but(rounds=2)
    nobody = short.but(model="nobody")  # its process ends at once
    here = Store(tmp_path / "here.jsonl")
    work = work_of([asked, nobody], here)
    made = dict(by_children(iter(work).__next__, cache, 1))  # a third one is not asked for
    make_rides(work[:1], cache=cache)
    assert made[work[0]].result == here[asked]
    assert made[work[1]].result is None and made[work[1]].failed == "its process ended with code 1"


def test_a_ride_that_fails_ends_the_run_and_keeps_the_others(tmp_path: Path) -> None:
    def make(ride: Ride, cache: Path) -> Result:
        if ride.seed == 2:
            raise RunFailed("it fell")
        return {"loss": 1.0}

    with pytest.raises(RunFailed, match="it fell"):
        make_rides(work_of(RIDES, Store(tmp_path / "x.jsonl")), cache=tmp_path, make=make)
    assert len(Store(tmp_path / "x.jsonl")) == 2


def test_a_run_whose_time_is_up_leaves_the_rest_and_the_next_one_goes_on(tmp_path: Path) -> None:
    clock, made, path = ManualClock(), list[int](), tmp_path / "x.jsonl"

    def make(ride: Ride, cache: Path) -> Result:
        made.append(ride.seed)
        clock.advance(10.0)
        return {"loss": 1.0}

    said = list[str]()
    work = work_of(RIDES, Store(path))
    make_rides(work, cache=tmp_path, budget=Budget(25.0, clock), make=make, say=said.append)
    assert made == [0, 1, 2] and len(Store(path)) == 3  # real seconds are told of each: it took none
    make_rides(work, cache=tmp_path, budget=Budget(0.0, clock), make=make, say=said.append)
    assert made == [0, 1, 2] and len(said) == 4
    make_rides(work, cache=tmp_path, make=make)
    assert made == [0, 1, 2, 3, 4]


def test_of_several_experiments_it_is_said_which(tmp_path: Path) -> None:
    one, two = (Store(tmp_path / f"{name}.jsonl") for name in ("merge", "outer"))
    said = list[str]()
    make_rides(work_of(RIDES[:1], one) + work_of(RIDES[:1], two), cache=tmp_path, make=Maker(), say=said.append)
    assert [text.partition("left: ")[2] for text in said[1:]] == [
        "merge as it ships, loss 0.000",
        "outer as it ships, loss 0.000",
    ]
    assert RIDES[0] in Store(one.path) and RIDES[0] in Store(two.path)


def test_where_nothing_can_be_kept_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    maker = Maker()
    with pytest.raises(OSError, match="file"):
        make_rides(work_of(RIDES, Store(tmp_path / "file" / "x.jsonl")), cache=tmp_path, make=maker)
    assert maker.made == []
