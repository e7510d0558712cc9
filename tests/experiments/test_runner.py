"""Whatever ends a run, what was made is kept, and only the rest is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.errors import RunFailed
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.runner import by_children, make_rides
from gruppetto.experiments.store import Result, Store

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
        make_rides(RIDES, Store(tmp_path / "x.jsonl"), cache=tmp_path, make=first, say=said.append)
    assert first.made == [0, 1] and said[0] == "5 runs to make, 1 at a time"
    then, said = Maker(), []
    make_rides(RIDES, Store(tmp_path / "x.jsonl"), cache=tmp_path, make=then, say=said.append)
    assert then.made == [2, 3, 4] and said[0].endswith("2 of 5 are there already")
    assert said[-1].startswith("3/3, 0 s left: seed=4, loss 4.000")
    never = Maker(until=0)
    make_rides(RIDES, Store(tmp_path / "x.jsonl"), cache=tmp_path, make=never)
    assert never.made == []


def test_children_make_the_same_and_one_that_dies_is_told(tmp_path: Path, short: Ride, cache: Path) -> None:
    asked = short.but(rounds=2)
    nobody = short.but(model="nobody")  # its process ends at once
    made = dict(by_children(iter([asked, nobody]).__next__, cache, 1))  # a third one is not asked for
    here = Store(tmp_path / "here.jsonl")
    make_rides([asked], here, cache=cache)
    assert made[asked].result == here[asked]
    assert made[nobody].result is None and made[nobody].failed == "its process ended with code 1"


def test_a_ride_that_fails_ends_the_run_and_keeps_the_others(tmp_path: Path) -> None:
    def make(ride: Ride, cache: Path) -> Result:
        if ride.seed == 2:
            raise RunFailed("it fell")
        return {"loss": 1.0}

    with pytest.raises(RunFailed, match="it fell"):
        make_rides(RIDES, Store(tmp_path / "x.jsonl"), cache=tmp_path, make=make)
    assert len(Store(tmp_path / "x.jsonl")) == 2


def test_where_nothing_can_be_kept_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    maker = Maker()
    with pytest.raises(OSError, match="file"):
        make_rides(RIDES, Store(tmp_path / "file" / "x.jsonl"), cache=tmp_path, make=maker)
    assert maker.made == []
