"""What is kept is there after whatever happens, and nothing else is."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Store


def test_results_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "x.jsonl")
    for seed in range(3):
        store.add(Ride(seed=seed, step_s=(1.0, 2.0)), {"loss": 2.0 + seed, "curve": [[1.0, 2, None]]}, took_s=0.1)
    again = Store(store.path)
    assert len(again) == 3 and Ride(seed=1) not in again
    assert again[Ride(seed=1, step_s=(1.0, 2.0))] == {"loss": 3.0, "curve": [[1.0, 2, None]]}


@pytest.mark.parametrize("torn", [1, 20, 60])
def test_a_line_that_was_cut_is_made_again_and_spoils_no_other(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "x.jsonl"
    Store(path).add(Ride(seed=0), {"loss": 1.0}, took_s=0)
    Store(path).add(Ride(seed=1), {"loss": 2.0}, took_s=0)
    path.write_bytes(path.read_bytes()[:-torn])
    after = Store(path)
    assert Ride(seed=0) in after and (Ride(seed=1) in after) == (torn == 1)  # all but its newline is a whole line
    after.add(Ride(seed=2), {"loss": 3.0}, took_s=0)
    again = Store(path)
    assert again[Ride(seed=0)] == {"loss": 1.0} and again[Ride(seed=2)] == {"loss": 3.0}


def test_two_runs_may_write_to_one_file(tmp_path: Path) -> None:
    one, other = Store(tmp_path / "x.jsonl"), Store(tmp_path / "x.jsonl")
    for seed in range(4):
        (one, other)[seed % 2].add(Ride(seed=seed), {"loss": float(seed)}, took_s=0)
    assert len(Store(tmp_path / "x.jsonl")) == 4


def test_a_line_whose_ride_was_changed_by_hand_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    Store(path).add(Ride(seed=0, learners=8), {"loss": 1.0}, took_s=0)
    line = json.loads(path.read_text())
    line["ride"]["learners"] = 16
    path.write_text(json.dumps(line) + "\n")
    assert len(Store(path)) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"loss":', b'"gain":'),
        lambda line: line.replace(b"1.0", b'"low"'),
        lambda line: line.replace(b"1.0", b"NaN"),
        lambda line: line.replace(b"1.0", b"1e999"),
        lambda line: line.replace(b"1.0", b'1.0,"more":' + b"[" * 5000 + b"]" * 5000),
        lambda line: line.replace(b'"ride":{', b'"ride":{"of_tomorrow":1,'),
        lambda line: line[: len(line) // 2],
        lambda line: bytes(range(256)),
        lambda line: b"\xef\xbb\xbf" + line,
    ],
)
def test_a_damaged_line_is_left_out_and_counted(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for seed in (0, 1):
        Store(path).add(Ride(seed=seed), {"loss": 1.0 + seed}, took_s=0)
    first, second = path.read_bytes().splitlines()
    path.write_bytes(damage(first) + b"\r\n\r\n" + second + b"\r\n")
    store = Store(path)
    assert len(store) == 1 and store[Ride(seed=1)] == {"loss": 2.0} and store.left_out >= 1


def test_a_line_that_the_disk_takes_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:7]))
    Store(tmp_path / "x.jsonl").add(Ride(seed=1), {"loss": 1.0}, took_s=0)
    assert Store(tmp_path / "x.jsonl")[Ride(seed=1)] == {"loss": 1.0}


def test_a_full_disk_is_said_with_its_file_and_spoils_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write, room = Store(tmp_path / "x.jsonl"), os.write, [30]

    def full(file: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= (wrote := write(file, content[: room[0]]))
        return wrote

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"x\.jsonl"):
            store.add(Ride(seed=1), {"loss": 1.0}, took_s=0)
    assert Ride(seed=1) not in store
    store.add(Ride(seed=2), {"loss": 2.0}, took_s=0)
    assert len(Store(store.path)) == 1
