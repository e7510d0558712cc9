"""Checkpoints that nobody asks for: taken when they are due, of new rounds only, and the old ones go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gruppetto.errors import SettingError, StateError
from gruppetto.runtime.manifest import complete_checkpoints, read_manifest
from gruppetto.runtime.run_checkpoint import install
from gruppetto.runtime.setting import SyncerSetting


def timed(world: Any, tensors: Any, **setting: Any) -> Any:
    """Two learners in lock-step; a checkpoint every ten seconds, a step takes one."""
    w = world(
        tensors(3, 2),
        num_learners=2,
        min_quorum=2,
        num_fragments=2,
        sync_period=2,
        overlap_steps=1,
        rounds=400,
        setting={"checkpoint_every_s": 10.0, **setting},
    )
    w.join(*(w.learner(name, np.zeros(5), lambda theta, _: theta - np.float32(0.1)) for name in "ab"))
    return w


def ride(w: Any, steps: int) -> None:
    for _ in range(steps):
        w.step_all()
        w.service.tick()


def marks(w: Any) -> list[str]:
    return [manifest.mark for _, manifest in complete_checkpoints(w.path / "syncer")]


def test_the_newest_stay_and_those_with_a_name_do_too(world: Any, tensors: Any) -> None:
    w = timed(world, tensors)
    ride(w, 9)
    assert marks(w) == [] and w.service.wake_at <= 10.0
    ride(w, 3)
    (first,) = marks(w)
    assert first.startswith("auto-1-") and read_manifest(w.path / "syncer/checkpoints" / first).left_out == ()
    assert w.service.take_checkpoint("friday")["stage"] == "waiting"
    ride(w, 40)
    found = marks(w)
    assert "friday" in found and first not in found
    assert len([mark for mark in found if mark.startswith("auto-")]) == 2
    assert {place.name for place in (w.path / "syncer/checkpoints").iterdir()} == set(found)


def test_learners_are_told_which_parts_are_needed(world: Any, tensors: Any) -> None:
    """All that can be gone on from at the moment of the cut, and one more than stays afterwards at most."""
    w, told = timed(world, tensors, checkpoints_kept=3), []
    ride(w, 1)
    perform = w.service.engine.checkpoints._feed

    def listen(event: Any) -> None:
        if hasattr(event, "kept"):
            told.append((event.mark, event.kept, marks(w)))
        perform(event)

    w.service.engine.checkpoints._feed = listen
    ride(w, 60)
    assert len(told) >= 5 and told[0][1] == ()
    for mark, kept, there in told:
        assert list(kept) == there and mark not in kept and len(kept) <= 3
    assert len(told[-1][1]) == 3


def test_without_a_new_round_there_is_none(world: Any, tensors: Any) -> None:
    w = timed(world, tensors)
    ride(w, 12)
    before = marks(w)
    assert len(before) == 1
    for _ in range(50):  # nobody steps
        w.clock.advance(1.0)
        w.service.tick()
    assert len(marks(w)) <= 2  # of a round that had passed since
    settled = marks(w)
    for _ in range(50):
        w.clock.advance(1.0)
        w.service.tick()
    assert marks(w) == settled


def test_one_that_is_started_again_goes_on_counting(world: Any, tensors: Any) -> None:
    w = timed(world, tensors)
    ride(w, 12)
    assert len(marks(w)) == 1
    w.service.close()
    now = w.clock.now()
    w.service = w.open()
    due = w.service._timer.due_at
    assert now < due <= now + 10.0  # the newest is a moment old by the date, however long this test has taken


def test_what_a_run_went_back_from_is_older(world: Any, tensors: Any) -> None:
    """Its rounds are higher, and its epoch is not: it goes first, and nobody goes on from it by default."""
    w = timed(world, tensors)
    ride(w, 12)
    w.service.take_checkpoint("friday")
    ride(w, 40)
    given_up = [mark for mark in marks(w) if mark.startswith("auto-")]
    friday = w.path / "syncer/checkpoints/friday"
    highest = max(manifest.round for _, manifest in complete_checkpoints(w.path / "syncer"))
    w.service.close()
    install(friday, w.path / "syncer")
    w.service, w.learners = w.open(), []
    learners = [w.learner(name, np.zeros(5), lambda theta, _: theta, session=f"{name}-2") for name in "ab"]
    w.join(*learners)
    ride(w, 12)
    newest, manifest = complete_checkpoints(w.path / "syncer")[-1]
    assert newest.name not in given_up and newest.name.startswith("auto-") and manifest.round < highest
    ride(w, 30)
    assert not set(given_up) & set(marks(w)) and friday.exists()


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        ({"checkpoint_every_s": 0.5}, "syncer.checkpoint_every_s"),
        ({"checkpoint_every_s": float("nan")}, "syncer.checkpoint_every_s"),
        ({"checkpoint_every_s": float("inf")}, "syncer.checkpoint_every_s"),
        ({"checkpoints_kept": 0}, "syncer.checkpoints_kept"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, setting: dict[str, Any], where: str) -> None:
    with pytest.raises(SettingError) as refused:
        SyncerSetting(state=tmp_path, **setting)
    assert refused.value.where == where


def test_a_name_that_would_go_by_itself_is_refused(world: Any, tensors: Any) -> None:
    w = timed(world, tensors)
    ride(w, 3)
    with pytest.raises(StateError, match="go by themselves"):
        w.service.take_checkpoint("auto-mine")
